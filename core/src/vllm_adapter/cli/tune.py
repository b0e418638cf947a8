"""`vllm-adapter tune`: measures what an adapter's kernels leave to choose, and keeps the best."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.cli import streams
from vllm_adapter.cli.output import Progress, emit_json, table
from vllm_adapter.contract.operators import OPERATORS, operator
from vllm_adapter.errors import InputError, UnsupportedCase

if TYPE_CHECKING:
    from vllm_adapter.contract.tuning import TuningTable
    from vllm_adapter.engine.device import OpenDevice

HELP: Final = (
    "measure the launch choices of an adapter's kernels on this device, and keep the best"
)
EXAMPLE: Final = """\
example:
  vllm-adapter tune cpu
  vllm-adapter tune cuda --op paged_attention --output tuning/sm_90.json

What is kept is used from the next start on, for this arch and count of compute units, and for
other counts of the arch where they have nothing of their own. Nothing is measured while serving.
A table in the folder `tuning` of an adapter's package is shipped with it. A change of its
modules makes a table void.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("name", metavar="NAME", help="the adapter")
    parser.add_argument("--device", type=int, default=0, help="index of its device (default: 0)")
    parser.add_argument("--op", action="append", metavar="OP", help="this operator alone; repeats")
    parser.add_argument("--rounds", type=int, default=9, help="of each choice (default: 9)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="instead of this user's cache: to ship it"
    )


def run(args: argparse.Namespace) -> int:
    """Prints what was chosen; exit code 0."""
    if args.rounds < 3:
        raise InputError("--rounds must be at least 3", hint="leave it out for 9")
    for name in args.op or ():
        operator(name)
    with streams.stdout_to_stderr():
        made, place = _tuned(args)
    if args.json:
        emit_json({"file": str(place), **_document(made)})
        return 0
    rows = [
        (
            entry.operator,
            entry.dtype,
            " ".join(f"{name}<={size}" for name, size in entry.bucket.items()),
            " ".join(f"{name}={value}" for name, value in entry.choice.items()) or "the default",
            f"{entry.median_us:.1f} us",
            f"{entry.default_us:.1f} us",
        )
        for entry in made.entries
    ]
    print(table(rows, ("OPERATOR", "DTYPE", "SIZES", "CHOICE", "TIME", "DEFAULT")), end="")
    print(f"{place}: {made.arch}, {made.units or 'unknown'} compute units", file=sys.stderr)
    return 0


def _tuned(args: argparse.Namespace) -> tuple[TuningTable, Path]:
    from vllm_adapter.contract.tuning import merged, read_table, write_table
    from vllm_adapter.discovery.tuning_files import cache_file
    from vllm_adapter.engine.device import open_device
    from vllm_adapter.engine.ops.tuning import cases_of, measure

    opened = open_device(args.name, args.device)
    record = opened.adapter.record
    place = args.output or cache_file(record)
    if place is None:
        raise InputError("this user has no folder for caches", hint="give --output FILE")
    cases = cases_of(opened.capability, opened.device, record.name, args.op or tuple(OPERATORS))
    if not cases:
        raise UnsupportedCase(
            f"no entry of {record.name}'s descriptor {opened.capability.origin} has a choice to "
            f"measure{' for ' + ', '.join(args.op) if args.op else ''}",
            hint='an entry says so by "tune": "module:function"',
        )
    entries = []
    with Progress(len(cases), "tune") as progress:
        for case in cases:
            sizes = " ".join(f"{name}={size}" for name, size in case.sizes.items())
            progress.note(f"{case.operator} {sizes}")
            entries.append(measure(case, _synchronize(opened), rounds=args.rounds))
            progress.step(f"{case.operator} {sizes}")
    made = _table(opened, entries)
    try:
        before = read_table(place) if place.is_file() else None
    except InputError:
        before = None  # of another release: it is replaced
    made = merged(before, made)
    if args.output is None:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_table(place, made)
    return made, place


def _synchronize(opened: OpenDevice) -> Any:
    return lambda: opened.runtime.synchronize_stream(opened.record.index)


def _table(opened: OpenDevice, entries: list[Any]) -> TuningTable:
    from vllm_adapter.contract.tuning import SCHEMA, TuningTable
    from vllm_adapter.discovery.tuning_files import digest_of
    from vllm_adapter.engine.device import live_units
    from vllm_adapter.engine.ops.tuning import TORCH_VERSION

    record = opened.adapter.record
    return TuningTable(
        schema=SCHEMA,
        adapter=record.name,
        arch=opened.capability.identity.arch,
        units=live_units(opened.device, opened.capability),
        digest=digest_of(record, opened.capability),
        made_with={"torch": TORCH_VERSION, record.distribution: record.version},
        entries=tuple(entries),
    )


def _document(made: TuningTable) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(made)
    return found
