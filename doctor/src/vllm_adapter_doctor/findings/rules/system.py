"""The system: the report's own faults, and processors that are switched off."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit


def collector(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """A traceback of the tool that made the report."""
    evidence = box.evidence(r'File ".*collect_env\w*\.py", line \d+')
    if evidence and box.has_line(r"\bTraceback \(most recent call last\)"):
        yield RuleHit(evidence[-1:])


def offline(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """CPUs that are switched off."""
    cpus = box.facts.cpu.offline
    if cpus:
        named = ", ".join(map(str, cpus[:8])) + (", ..." if len(cpus) > 8 else "")
        yield RuleHit(
            box.evidence(r"(?i)^off-?line cpu", f"offline CPUs: {named}"), {"cpus": named}
        )
