"""`vllm-adapter versions`: which versions were certified together, and whether those here were."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.cli.output import clean, emit_json, table, warn
from vllm_adapter.errors import CertificateError

if TYPE_CHECKING:
    from vllm_adapter.discovery.certified import CertifiedSet, VersionSet

HELP: Final = "show which vLLM, torch, driver and adapter were certified together"
EXAMPLE: Final = """\
example:
  vllm-adapter versions                             certificates in ./certificates and in adapters
  vllm-adapter versions --folder docs/certificates

A certificate is read for what it says: `vllm-adapter verify FILE` proves it. What it does not
name, such as a driver, is shown as -, and nothing is said of it.

exit code: 0 if each adapter that serves a device here is certified with the versions here, 1 if
not, 2 for bad input
"""
_HEADERS: Final = (
    *("ADAPTER", "VERSION", "LEVEL", "DEVICE", "CORE", "TORCH", "VLLM", "DRIVER"),
    "CERTIFICATE",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        help="certificates there, beside those that adapters ship (default: ./certificates)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the certified combinations, then this machine's; see EXAMPLE for the exit code."""
    from vllm_adapter.discovery import certified, registry
    from vllm_adapter.discovery.records import Status
    from vllm_adapter.settings import Settings

    records = registry.scan(Settings.from_environ())
    found: list[CertifiedSet] = []
    for file in certified.certificate_files(
        None if args.folder is None else Path(args.folder), records
    ):
        try:
            found.append(certified.read_certified(file))
        except CertificateError as error:
            warn(f"left out: {error.message}")
    host = registry.host_for(records)
    here = [
        (record.name, certified.installed_set(record, None))
        for record in registry.with_cached_probes(registry.located(records, host), host)
        if record.status in (Status.OK, None)
        and record.manifest is not None
        and record.manifest.device is not None
    ]
    answers = [_answer(name, versions, found) for name, versions in here]
    if args.json:
        emit_json({"certified": [one.to_json() for one in found], "here": answers})
    else:
        _print(found, answers)
    return 0 if all(one["certified_by"] for one in answers) else 1


def _answer(name: str, here: VersionSet, found: list[CertifiedSet]) -> dict[str, Any]:
    """Whether one adapter's combination here is certified, or how far the nearest is from it."""
    own = [one for one in found if one.name == name and not one.emulated]
    by = [one for one in own if not here.differences(one.versions)]
    nearest = min(own, key=lambda one: len(here.differences(one.versions)), default=None)
    if by:
        best = max(by, key=lambda one: one.level)
        sentence = f"certified at {best.level} on {best.device} ({best.file})"
        unsaid = [
            part
            for part, version in best.versions.versions.items()
            if version is None and here.versions.get(part) is not None
        ]
        if unsaid:
            sentence += f"; that certificate does not name {', '.join(unsaid)}"
    elif nearest is None:
        sentence = "nobody has certified it: no certificate of this adapter is here"
    else:
        away = "; ".join(here.differences(nearest.versions))
        sentence = f"nobody has certified this combination; the nearest, {nearest.file}: {away}"
    return {
        "adapter": name,
        "versions": dict(here.versions),
        "certified_by": [str(one.file) for one in by],
        "sentence": sentence,
    }


def _print(found: list[CertifiedSet], answers: list[dict[str, Any]]) -> None:
    if found:
        rows = [
            (
                one.name,
                one.versions.versions["adapter"],
                f"{one.level}{' emulated' if one.emulated else ''}",
                f"{one.device} ({one.arch})",
                *(one.versions.versions[part] for part in ("core", "torch", "vllm", "driver")),
                str(one.file),
            )
            for one in found
        ]
        print(table(rows, _HEADERS), end="")
    else:
        print("no certificate is here: `vllm-adapter certify` writes them")
    for one in answers:
        versions = ", ".join(f"{k} {v}" for k, v in one["versions"].items() if v is not None)
        print(clean(f"here: {one['adapter']} ({versions}): {one['sentence']}"))
