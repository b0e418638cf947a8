"""All rules over one box: findings without repetition, the worst first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.finding import Finding, Severity
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter_doctor.devices.box_vendor import foreign, on_wsl
from vllm_adapter_doctor.findings.host import MAX_EVIDENCE, ExaminedHost
from vllm_adapter_doctor.findings.register import all_rules

_DEVICE: Final = re.compile(r"\bdevice [0-9]")
_ORDER: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def diagnose(box: ExaminedHost, others: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Every finding and note, once each. `others` are those of adapters, which join ours."""
    rules = all_rules()
    first = [one for rule in rules if not rule.last for one in rule.check(box)]
    box.said = said = _unlike((*first, *others))
    said = _unlike((*said, *(one for rule in rules if rule.last for one in rule.check(box))))
    codes = {one.code for one in said}
    explained = {code for cause in codes for code in CODES[cause].explains}
    kept = [_for_vendor(one, box) for one in said if one.code not in explained]
    kept = _events(kept)
    return tuple(sorted(kept, key=lambda one: (_ORDER[one.severity], one.code)))


def _for_vendor(one: Finding, box: ExaminedHost) -> Finding:
    """A finding whose advice is for another vendor's box alone keeps its cause, and not that."""
    vendor = box.vendor
    if vendor is not None and box.wsl and (action := on_wsl(one.action, vendor.name)):
        cause = f"{one.title}, under WSL" if on_wsl(one.cause, vendor.name) else one.cause
        return replace(one, cause=cause, action=action)
    if vendor is None or foreign(one.action, vendor.name) is None:
        return one
    general = CODES[one.code].action
    if foreign(general, vendor.name) is not None:
        title = VENDORS[vendor.name].name if vendor.name in VENDORS else vendor.name
        general = f"look for this in {title}'s own documents: the usual remedy is another vendor's"
    return replace(one, action=general)


def _events(findings: list[Finding]) -> list[Finding]:
    """A fault of a device once: what names no device joins what names one, of the same code."""
    named = {
        one.code: one
        for one in reversed(findings)
        if CODES[one.code].stops == ("device",) and _DEVICE.search(one.cause)
    }
    return [
        one
        for one in findings
        if one.code not in named or one is named[one.code] or _DEVICE.search(one.cause)
    ]


def _unlike(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that say the same, joined."""
    found: dict[tuple[str, str], Finding] = {}
    for one in findings:
        key = (one.code, one.cause)
        found[key] = _joined(found[key], one) if key in found else one
    return tuple(found.values())


def _joined(one: Finding, other: Finding) -> Finding:
    evidence = tuple(dict.fromkeys((*one.evidence, *other.evidence)))[:MAX_EVIDENCE]
    worse = min(one.severity, other.severity, key=_ORDER.__getitem__)
    return Finding(one.code, worse, evidence, one.cause, one.action)
