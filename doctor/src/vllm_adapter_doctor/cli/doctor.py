"""`vllm-adapter doctor`: what is wrong with a box, with evidence, cause and next step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.cli.output import clean, emit_json, warn
from vllm_adapter_doctor.cli.findings import print_findings
from vllm_adapter_doctor.cli.report_option import add_report, host_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_adapter.contract.finding import Finding
    from vllm_adapter.hostfacts.facts import HostFacts

HELP: Final = "find what is wrong with this machine, a pasted report, or the installed vLLM"
EXAMPLE: Final = """\
example:
  vllm-adapter doctor                      drivers, builds, devices, containers of this machine
  vllm-adapter doctor --report error.txt   the same from what vLLM, a tool or a crash printed
  vllm-adapter doctor --vllm               which platform vLLM takes and why, hooks, signatures
  vllm-adapter doctor --bundle box.json    facts and versions for a bug report, secrets left out
  vllm-adapter explain VA1101              the page of a code

exit code: 0 nothing is wrong (notes may be printed); 1 findings, or a text in which nothing is
known, so that nobody can say that nothing is wrong; 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_report(parser)
    parser.add_argument("--vllm", action="store_true", help="inspect the installed vLLM")
    parser.add_argument(
        "--bundle",
        metavar="FILE",
        help="write one JSON file for a bug report: facts, versions, adapters, settings",
    )
    parser.add_argument("--force", action="store_true", help="let --bundle write over a file")


def run(args: argparse.Namespace) -> int:
    """Prints findings and notes; 0 if there is no finding, else 1."""
    if args.bundle is not None:
        return _bundle(args)
    if args.vllm:
        from vllm_adapter_doctor.cli.doctor_vllm import inspect

        return inspect(as_json=args.json)
    from vllm_adapter.contract.finding import Severity
    from vllm_adapter_doctor.findings.diagnose import diagnose
    from vllm_adapter_doctor.findings.host import ExaminedHost

    facts = host_facts(args)
    live = args.report is None
    box, others = ExaminedHost(facts, live=live), _of_adapters(facts, live=live)
    findings = diagnose(box, others)
    if more := _of_devices(facts, findings, live=live):
        findings = diagnose(box, (*others, *more))
    wrong = [one for one in findings if one.severity is not Severity.NOTE]
    recognised = _recognised(facts, findings)
    if args.json:
        emit_json(_document(facts, findings, recognised))
    else:
        print(_box_line(facts, live=live))
        print_findings(findings, recognised=recognised)
    return 1 if wrong or not recognised else 0


def _recognised(facts: HostFacts, findings: Sequence[Finding]) -> bool:
    """Whether anything of a report was understood."""
    from dataclasses import replace

    from vllm_adapter.hostfacts.facts import HostFacts

    reported = replace(facts, report=(), unknown=())
    return bool(findings) or reported != HostFacts()


def _of_adapters(facts: HostFacts, *, live: bool) -> Sequence[Finding]:
    """What installed adapters find, and what is wrong with them where the box is this machine.

    One that cannot be asked is named on stderr.
    """
    from vllm_adapter.discovery import registry
    from vllm_adapter.discovery.entry_files import unreadable
    from vllm_adapter.settings import Settings
    from vllm_adapter_doctor.findings.adapters import ask
    from vllm_adapter_doctor.findings.installed import findings as of_records
    from vllm_adapter_doctor.findings.installed import of_packages

    records = registry.scan(Settings.from_environ())
    findings, failed = ask(records, facts)
    for sentence in failed:
        warn(sentence)
    if not live:
        return findings
    records = registry.with_cached_probes(registry.located(records, facts), facts)
    return (*of_packages(unreadable()), *of_records(records), *findings)


def _of_devices(facts: HostFacts, findings: Sequence[Finding], *, live: bool) -> Sequence[Finding]:
    """What `devices` refuses by a descriptor, or by a rule that the findings do not have yet."""
    from vllm_adapter.discovery import registry
    from vllm_adapter.settings import Settings
    from vllm_adapter_doctor.devices.manager import DeviceManager
    from vllm_adapter_doctor.findings.device_stops import stops_without_finding

    settings = Settings.from_environ()
    return stops_without_finding(
        DeviceManager(facts, settings, registry.scan(settings), live), findings
    )


def _document(facts: HostFacts, findings: Sequence[Finding], recognised: bool) -> dict[str, Any]:
    from vllm_adapter.contract.finding import Severity
    from vllm_adapter_doctor.devices.box_vendor import box_vendor
    from vllm_adapter_doctor.devices.inventory import inventory

    vendor = box_vendor(facts)
    notes = [one for one in findings if one.severity is Severity.NOTE]
    return {
        "lines": len(facts.report),
        "recognised": recognised,
        "devices": [
            {"vendor": one.vendor, "index": one.index, "name": one.name, "source": one.source}
            for one in inventory(facts).devices
        ],
        "vendor": {"name": vendor.name, "evidence": vendor.evidence} if vendor else None,
        "findings": [one.to_json() for one in findings if one not in notes],
        "notes": [one.to_json() for one in notes],
    }


def _box_line(facts: HostFacts, *, live: bool) -> str:
    """What was examined, in one line."""
    from vllm_adapter.hostfacts.known_vendors import VENDORS
    from vllm_adapter_doctor.devices.box_vendor import box_vendor
    from vllm_adapter_doctor.devices.inventory import inventory

    numbers: dict[str, int] = {}
    for one in inventory(facts).devices:
        part = f" {one.partition}" if one.partition else ""
        name = clean(one.title + part)
        numbers[name] = numbers.get(name, 0) + 1
    devices = ", ".join(f"{count} x {name}" for name, count in numbers.items())
    vendor = None if devices else box_vendor(facts)
    if vendor is not None:
        name = VENDORS[vendor.name].name if vendor.name in VENDORS else vendor.name
        devices = f"{name}'s software ({vendor.evidence}), and no device is listed"
    count = len(facts.report)
    lines = (
        f"{count} line{'s' if count != 1 else ''} of a report" if count else "facts of a machine"
    )
    if count and facts.report[-1].number > count + count // 10:
        lines += f" (of {facts.report[-1].number}: the others repeat them)"
    lines = "this machine" if live else lines
    torch = facts.torch.version if facts.torch else None
    return f"{lines}: {devices or 'no accelerator seen'}; torch {clean(torch or 'not seen')}"


def _bundle(args: argparse.Namespace) -> int:
    from vllm_adapter_doctor.findings.bundle import refuse_to_replace, write_bundle

    path = Path(args.bundle)
    if not args.force:
        refuse_to_replace(path)
    write_bundle(path, host_facts(args), force=args.force)
    if args.json:
        emit_json({"bundle": args.bundle})
    else:
        print(f"wrote {clean(args.bundle)}: look through it before you send it to anybody")
    return 0
