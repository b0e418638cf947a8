"""How the vendors' tools print their devices: the layouts of the vendors' files, compiled.

A pattern's named groups are readings: `index`, `name`, `bdf`, `uuid`, `status`, `load` (per cent),
`temperature` (C), `power` and `cap` (W), `used` and `total` (MiB), `size` (with a unit),
`partition`, `uncorrectable`, and of processes `index`, `pid`, `name` and `mib` or `size`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_adapter.hostfacts.vendor_files import once, sections

Pattern = re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Version:
    """A version in the first `lines` of a table; its one group is the number."""

    component: str
    pattern: Pattern
    lines: int


@dataclass(frozen=True, slots=True)
class BoardColumns:
    """Tables whose numbers are of boards, which carry one or more chips: see `_boards`.

    `columns` is the line of columns: each of its groups that is there is one more kind of memory,
    the last of which is the chip's own. `arch` is the device code in a chip's name.
    """

    columns: Pattern
    arch: Pattern


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table: NVIDIA's frame, where `first` is None, or rows of the tool's own.

    A device is a line that `first` fits, and the line below it, in which `second` is looked for.
    In NVIDIA's frame `status` is looked for in that line, `load` and `errors` in the right half of
    the first. `driver` is the component whose version the group `driver` is. `process` is a row of
    the table of processes, which `process_head` begins; None is NVIDIA's, whose rows name a type.
    `source` is what readings are said to be from, where it is not the program alone.
    """

    first: Pattern | None
    second: Pattern | None
    status: Pattern | None
    load: Pattern | None
    errors: tuple[tuple[Pattern, str], ...]
    process: Pattern | None
    driver: str | None
    process_head: Pattern | None
    source: str | None
    boards: BoardColumns | None


@dataclass(frozen=True, slots=True)
class Block:
    """Lines "key: value" below a line that names a device, or, `inside`, only those of a table.

    `keys` are readings by key, or by "section/key" where a key without a value begins a section;
    "bdf 0" to "bdf 3" are the parts of an address. `driver` is (component, key, pattern).
    """

    head: Pattern
    keys: Mapping[str, str]
    inside: bool
    driver: tuple[str, str, Pattern] | None


@dataclass(frozen=True, slots=True)
class KeyedLines:
    """Lines of a key and a value: groups `key`, `value`, `index` and `closed` of `pair`.

    `head` begins them, and may name the device by its group `index`; they end at the first line
    that is none, and not like `between`. Without a head they stand anywhere, each with its index.
    """

    pair: Pattern
    head: Pattern | None
    between: Pattern | None


@dataclass(frozen=True, slots=True)
class KeyedJson:
    """JSON that holds `mark`: a list, or one under `entries`, of objects with their `index`.

    With `names`, an object of devices by names that hold the number.
    """

    mark: str
    entries: str | None
    index: str | None
    names: Pattern | None


@dataclass(frozen=True, slots=True)
class Keyed:
    """Readings by the tool's own keys, in small letters; the first key that says it counts.

    Readings are those of a row, with `arch`, `die`, `compute mode`, `memory mode`, `maker`,
    `driver`, `uncorrectable`; "total bytes" and "total MiB" are plain numbers. `throttled` are
    reasons by keys that say ACTIVE. `others`: the tool's face is worn by others' devices.
    """

    lines: tuple[KeyedLines, ...]
    json: KeyedJson | None
    dump: Pattern | None
    readings: Mapping[str, tuple[str, ...]]
    throttled: Mapping[str, str]
    others: bool


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
    anchor: Pattern | None
    head: Pattern
    whole_text: bool
    versions: tuple[Version, ...]
    rows: Rows | None
    lists: tuple[Pattern, ...]
    blocks: tuple[Block, ...]
    csv: tuple[str, ...]
    arch: Pattern | None
    keyed: Keyed | None


@once
def layouts() -> tuple[ToolLayout, ...]:
    """Every layout that is data; tools without one are read by modules of their own."""
    return tuple(
        layout
        for vendor, tools in sections("tools")
        for tool in tools
        if (layout := _layout(vendor, tool)) is not None
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


def _layout(vendor: str, tool: Mapping[str, Any]) -> ToolLayout | None:
    raw = tool.get("output", {})
    if not {"anchor", "rows", "keyed"} & set(raw):
        return None
    return ToolLayout(
        vendor,
        tool["program"],
        _compiled(raw, "anchor"),
        re.compile(raw["head"]),
        raw.get("whole_text", False),
        tuple(
            Version(one["component"], re.compile(one["pattern"]), one.get("lines", 1))
            for one in raw.get("versions", ())
        ),
        _rows(raw["rows"]) if "rows" in raw else None,
        tuple(map(re.compile, raw.get("lists", ()))),
        tuple(map(_block, raw.get("blocks", ()))),
        tuple(raw.get("csv", ())),
        _compiled(raw, "arch"),
        _keyed(raw["keyed"]) if "keyed" in raw else None,
    )


def _keyed(raw: Mapping[str, Any]) -> Keyed:
    form = raw.get("json")
    return Keyed(
        tuple(
            KeyedLines(re.compile(one["pair"]), _compiled(one, "head"), _compiled(one, "between"))
            for one in raw.get("lines", ())
        ),
        KeyedJson(form["mark"], form.get("entries"), form.get("index"), _compiled(form, "names"))
        if form
        else None,
        _compiled(raw, "dump"),
        {reading: tuple(keys) for reading, keys in raw["readings"].items()},
        raw.get("throttled", {}),
        raw.get("others", False),
    )


def _rows(raw: Mapping[str, Any]) -> Rows:
    return Rows(
        _compiled(raw, "first"),
        _compiled(raw, "second"),
        _compiled(raw, "status"),
        _compiled(raw, "load"),
        tuple((re.compile(one["pattern"]), one["text"]) for one in raw.get("errors", ())),
        _compiled(raw, "process"),
        raw.get("driver"),
        _compiled(raw, "process_head"),
        raw.get("source"),
        _boards(raw["boards"]) if "boards" in raw else None,
    )


def _boards(raw: Mapping[str, Any]) -> BoardColumns:
    return BoardColumns(re.compile(raw["columns"]), re.compile(raw["arch"]))


def _block(raw: Mapping[str, Any]) -> Block:
    driver = raw.get("driver")
    return Block(
        re.compile(raw["head"]),
        raw["keys"],
        raw.get("inside", False),
        (driver["component"], driver["key"], re.compile(driver["pattern"])) if driver else None,
    )


def _compiled(raw: Mapping[str, Any], key: str) -> Pattern | None:
    return re.compile(raw[key]) if key in raw else None
