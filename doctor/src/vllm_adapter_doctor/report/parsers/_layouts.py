"""How the vendors' tools print their devices: the layouts of the vendors' files, compiled.

A pattern's named groups are readings: `index`, `name`, `bdf`, `uuid`, `status`, `load` (per cent),
`temperature` (C), `power` and `cap` (W), `used` and `total` (MiB), `size` (with a unit),
`partition`, `uncorrectable`, and of processes `index`, `pid`, `name` and `mib` or `size`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_adapter.hostfacts.vendor_files import once, sections, typed

Pattern = re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Version:
    """A version in the first `lines` of a table; its one group is the number."""

    component: str
    pattern: Pattern
    lines: int = 1


@dataclass(frozen=True, slots=True)
class BoardColumns:
    """Tables whose numbers are of boards, which carry one or more chips: see `_boards`.

    `columns` is the line of columns: each of its groups that is there is one more kind of memory,
    the last of which is the chip's own. `arch` is the device code in a chip's name.
    """

    columns: Pattern
    arch: Pattern


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter that is an error where the pattern finds it; `text` is its sentence."""

    pattern: Pattern
    text: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table: NVIDIA's frame, where `first` is None, or rows of the tool's own.

    A device is a line that `first` fits, and the line below it, in which `second` is looked for.
    In NVIDIA's frame `status` is looked for in that line, `load` and `errors` in the right half of
    the first. `driver` is the component whose version the group `driver` is. `process` is a row of
    the table of processes, which `process_head` begins; None is NVIDIA's, whose rows name a type.
    `source` is what readings are said to be from, where it is not the program alone.
    """

    first: Pattern | None = None
    second: Pattern | None = None
    status: Pattern | None = None
    load: Pattern | None = None
    errors: tuple[Counter, ...] = ()
    process: Pattern | None = None
    driver: str | None = None
    process_head: Pattern | None = None
    source: str | None = None
    boards: BoardColumns | None = None


@dataclass(frozen=True, slots=True)
class DriverKey:
    """The key whose value is a driver's version; the pattern's group is the number."""

    component: str
    key: str
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Block:
    """Lines "key: value" below a line that names a device, or, `inside`, only those of a table.

    `keys` are readings by key, or by "section/key" where a key without a value begins a section;
    "bdf 0" to "bdf 3" are the parts of an address.
    """

    head: Pattern
    keys: Mapping[str, str]
    inside: bool = False
    driver: DriverKey | None = None


@dataclass(frozen=True, slots=True)
class KeyedLines:
    """Lines of a key and a value: groups `key`, `value`, `index` and `closed` of `pair`.

    `head` begins them, and may name the device by its group `index`; they end at the first line
    that is none, and not like `between`. Without a head they stand anywhere, each with its index.
    """

    pair: Pattern
    head: Pattern | None = None
    between: Pattern | None = None


@dataclass(frozen=True, slots=True)
class KeyedJson:
    """JSON that holds `mark`: a list, or one under `entries`, of objects with their `index`.

    With `names`, an object of devices by names that hold the number.
    """

    mark: str
    entries: str | None = None
    index: str | None = None
    names: Pattern | None = None


@dataclass(frozen=True, slots=True)
class Keyed:
    """Readings by the tool's own keys, in small letters; the first key that says it counts.

    Readings are those of a row, with `arch`, `die`, `compute mode`, `memory mode`, `maker`,
    `driver`, `uncorrectable`; "total bytes" and "total MiB" are plain numbers. `throttled` are
    reasons by keys that say ACTIVE. `others`: the tool's face is worn by others' devices.
    """

    readings: Mapping[str, tuple[str, ...]]
    lines: tuple[KeyedLines, ...] = ()
    json: KeyedJson | None = None
    dump: Pattern | None = None
    throttled: Mapping[str, str] = field(default_factory=dict)
    others: bool = False


@dataclass(frozen=True, slots=True)
class ToolLayout:
    """All that one tool prints. `anchor` is in every text that has something of it; None where
    another module reads it, with these patterns.

    `head` begins a table; with `whole_text` rows are looked for wherever they are. `lists` are
    lines of one device each, `csv` the columns of which one makes a CSV the tool's, `arch` a line
    that tells the code of all devices, and `keyed` what is told by keys anywhere in the text.
    """

    vendor: str
    source: str
    head: Pattern
    anchor: Pattern | None = None
    whole_text: bool = False
    versions: tuple[Version, ...] = ()
    rows: Rows | None = None
    lists: tuple[Pattern, ...] = ()
    blocks: tuple[Block, ...] = ()
    csv: tuple[str, ...] = ()
    arch: Pattern | None = None
    keyed: Keyed | None = None


@once
def layouts() -> tuple[ToolLayout, ...]:
    """Every layout that is data; tools without one are read by modules of their own."""
    return tuple(
        typed(tool["output"], ToolLayout, vendor=vendor, source=tool["program"])
        for vendor, tools in sections("tools")
        for tool in tools
        if {"anchor", "rows", "keyed"} & tool.get("output", {}).keys()
    )


@once
def heads() -> tuple[tuple[str, str, Pattern], ...]:
    """(vendor, program, head) of every tool whose tables have one."""
    return tuple(
        (vendor, tool["program"], re.compile(tool["output"]["head"]))
        for vendor, tools in sections("tools")
        for tool in tools
        if "head" in tool.get("output", {})
    )


def other_heads(vendor: str) -> tuple[Pattern, ...]:
    """The heads of all other vendors' tools, where a table of this one's ends."""
    return tuple(head for other, _, head in heads() if other != vendor)


def layout_of(program: str) -> ToolLayout:
    """The layout of a tool of which a module of its own reads a part."""
    return next(one for one in layouts() if one.source == program)
