"""`vllm-adapter list`: which adapters are installed, and which can be used here."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from vllm_adapter.cli.output import clean, colour, emit_json, table, warn
from vllm_adapter.hostfacts.known_vendors import how_to_serve

if TYPE_CHECKING:
    from vllm_adapter.discovery.registry import AdapterRecord

HELP: Final = "list the installed adapters, and whether each can be used on this machine"
EXAMPLE: Final = """\
example:
  vllm-adapter list            manifests and the last probe's answers; imports no adapter
  vllm-adapter list --probe    asks every adapter again, in a child process

exit code: 0 if an adapter is ok or not probed yet, 1 if none can be used, 2 for bad input
"""
_HEADERS: Final = ("NAME", "VENDOR", "VERSION", "STATUS", "DEVICES")
_COLOURS: Final = {"ok": "green", "broken": "red", "incompatible": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--probe", action="store_true", help="ask each adapter that matches")


def run(args: argparse.Namespace) -> int:
    """Prints the adapters; 0 if one of them is ok or not probed yet, 1 if none can be used."""
    from vllm_adapter.discovery import registry
    from vllm_adapter.discovery.entry_files import unreadable
    from vllm_adapter.settings import Settings

    settings = Settings.from_environ()
    records = registry.scan(settings)
    for sentence in registry.unknown_names(records, settings):
        warn(sentence)
    for one in unreadable():
        warn(str(one))
    host = registry.host_for(records)
    records = registry.located(records, host)
    if args.probe:
        records = registry.probe(records, host, fresh=True)
    else:
        records = registry.with_cached_probes(records, host)
    unserved = registry.unserved(records, host)
    if args.json:
        emit_json(
            {
                "adapters": [record.to_json() for record in records],
                "not_installed": [
                    {"name": name, "reason": reason, "next_step": how_to_serve(name)}
                    for name, reason in unserved.items()
                ],
            }
        )
    else:
        _print(records, unserved)
    return 0 if any(r.status in (None, registry.Status.OK) for r in records) else 1


def _print(records: Sequence[AdapterRecord], unserved: Mapping[str, str]) -> None:
    if not records:
        print(f"no adapter is installed; run `{how_to_serve('cpu')}`")
    else:
        rows = [
            (
                record.name,
                record.manifest.vendor if record.manifest else None,
                record.version,
                record.status_text,
                ", ".join(device.torch for device in record.devices) or None,
            )
            for record in records
        ]
        print(table(rows, _HEADERS), end="")
    for record in records:
        if record.reason:
            _explain(record.name, record.status_text, record.reason, record.next_step)
            for line in record.evidence:
                if line.startswith("stderr: "):
                    print(f"  {clean(line)}")
    for name, reason in unserved.items():
        _explain(name, "not installed", reason, how_to_serve(name))
    for line in _hardware(records):
        print(f"\n{clean(line)}")
    if any(record.status is None for record in records):
        print("\nnot probed: run `vllm-adapter list --probe`")


def _hardware(records: Sequence[AdapterRecord]) -> list[str]:
    """What of the adapters was never run on the hardware that it is for."""
    lines = []
    never = [r.name for r in records if r.manifest is not None and r.manifest.tested_on == ()]
    if never:
        lines.append(f"not run on hardware: {', '.join(never)} (written from documents alone)")
    for record in records:
        for device in record.devices:
            if record.name not in never and record.has_run(device) is False:
                assert device.capability_file is not None
                who = f"{device.torch} ({device.name})"
                name = device.capability_file.stem
                lines.append(f"{who}: its descriptor {name} was not run on hardware")
    return lines


def _explain(name: str, status: str, reason: str, next_step: str) -> None:
    mark = colour(status, _COLOURS.get(status, "yellow"))
    print(f"\n{clean(name)} {mark}: {clean(reason)}")
    if next_step:
        print(f"  next: {clean(next_step)}")
