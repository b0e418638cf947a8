"""What was measured to run best on a chip, by operator, dtype and sizes: without torch.

A table is of one adapter and one arch. It is made by `vllm-adapter tune`, kept in this user's
cache or shipped in the adapter's folder `tuning`, and read when the device is opened: never made
while anything is served. What is asked for and not there is the kernel's own default.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from vllm_adapter.errors import InputError
from vllm_adapter.files import read_json, schema_version, write_atomic

SCHEMA_NAME: Final = "vllm-adapter/tuning"
SCHEMA: Final = f"{SCHEMA_NAME}/1.0"
SUFFIX: Final = "*.json"
Choice = Mapping[str, bool | int | str]
"""What a kernel is launched with, by its own names; empty is the kernel's default."""
Sizes = Mapping[str, int]

_Name = Annotated[str, Meta(min_length=1, max_length=100)]


class TuningEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The best of the choices that were tried for one bucket of sizes."""

    operator: _Name
    dtype: _Name
    bucket: dict[str, int]
    """Each size, rounded up to a power of two."""
    choice: dict[str, bool | int | str]
    median_us: float
    """Of a call with the choice, in microseconds."""
    default_us: float
    """Of a call with the kernel's default, measured in alternation with it."""
    tried: int
    """How many choices were tried beside the default."""


class TuningTable(Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured on one device. `units`: its live compute units, None where unknown."""

    schema: str
    adapter: _Name
    arch: _Name
    units: int | None
    digest: str
    """SHA-256 of the adapter's files when it was made: of others' kernels it says nothing."""
    made_with: dict[str, str]
    """Versions of torch and of the adapter."""
    entries: tuple[TuningEntry, ...]


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """A choice, and how near its measurement is: `exact`, `arch` (other units), `default`."""

    choice: Choice
    how: str
    entry: TuningEntry | None = None


def bucket_of(sizes: Sizes) -> dict[str, int]:
    """Each size rounded up to a power of two, 0 staying 0.

    >>> bucket_of({"rows": 5, "width": 576, "prefill": 0})
    {'rows': 8, 'width': 1024, 'prefill': 0}
    """
    return {name: 1 << (size - 1).bit_length() if size > 0 else 0 for name, size in sizes.items()}


def choose(
    tables: Iterable[TuningTable],
    arch: str,
    units: int | None,
    operator: str,
    dtype: str,
    sizes: Sizes,
) -> TunedChoice:
    """The measured choice for a case: of this arch and count of units, else of this arch alone."""
    bucket, near = bucket_of(sizes), None
    for table in tables:
        if table.arch != arch:
            continue
        for entry in table.entries:
            if (entry.operator, entry.dtype, entry.bucket) == (operator, dtype, bucket):
                if table.units == units:
                    return TunedChoice(entry.choice, "exact", entry)
                near = near or TunedChoice(entry.choice, "arch", entry)
    return near or TunedChoice({}, "default")


def read_table(path: Path) -> TuningTable:
    """A table from a file.

    Raises:
        InputError: it cannot be read, is of another major version, or breaks the format.
    """
    raw = read_json(path, "the tuning table")
    tag = raw.get("schema") if isinstance(raw, dict) else None
    version = schema_version(tag, SCHEMA_NAME)
    if version is None or version[0] != 1:
        raise InputError(
            f"{path} is no tuning table of this release: its schema is {tag!r}",
            hint=f"this release reads {SCHEMA}; make it anew with `vllm-adapter tune`",
        )
    try:
        return msgspec.convert(raw, TuningTable)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{path} is no tuning table: {error}",
            hint="make it anew with `vllm-adapter tune`",
        ) from None


def write_table(path: Path, table: TuningTable) -> None:
    """Writes a table, whole or not at all.

    Raises:
        InputError: the folder cannot be written.
    """
    write_atomic(path, json.dumps(msgspec.to_builtins(table), indent=1) + "\n")


def merged(old: TuningTable | None, new: TuningTable) -> TuningTable:
    """The new table, with those entries of the old one that it does not replace.

    An old one of other files, another arch or another count of units has none.
    """
    if old is None or _of(old) != _of(new):
        return new
    mine = {_key(entry) for entry in new.entries}
    kept: Sequence[TuningEntry] = [e for e in old.entries if _key(e) not in mine]
    return msgspec.structs.replace(new, entries=(*kept, *new.entries))


def _of(table: TuningTable) -> tuple[Any, ...]:
    return table.adapter, table.arch, table.units, table.digest


def _key(entry: TuningEntry) -> tuple[Any, ...]:
    return entry.operator, entry.dtype, tuple(sorted(entry.bucket.items()))
