"""How a failure is reported: the same words in pytest's report, in certify and in repro.py."""

from __future__ import annotations

from vllm_adapter.cli.output import clean
from vllm_adapter_conformance.judge.grouping import FailureGroup
from vllm_adapter_conformance.judge.outcome import BLOCKED, Result


def failure_lines(result: Result) -> list[str]:
    """The lines of one case that did not pass, with the command that prints the rule's page."""
    rule = result.item.partition("[")[0]
    if result.outcome == BLOCKED:
        return [f"{result.item}: blocked by {result.blocked_by}"]
    lines = [result.item, f"  expected  {result.expected}", f"  saw       {result.seen}"]
    if result.share is not None:
        lines.append(f"  error     {result.share:.3g} of the budget")
    lines += [f"  {line}" for line in result.detail.splitlines()]
    if result.waiver:
        lines.append(f"  waived    {result.waiver['issue']} until {result.waiver['expires']}")
    lines.append(f"  page      vllm-adapter explain {rule}")
    return [clean(line) for line in lines]  # a kernel's own words may hold escape codes


def group_lines(group: FailureGroup) -> list[str]:
    """The lines of failures of one cause: those of the first, and which others are alike."""
    first, *rest = failure_lines(group.first)
    if not group.others:
        return [first, *rest]
    cases = "case" if group.others == 1 else "cases"
    head = f"{first}, and {group.others} more {cases} of the same cause"
    alike = [
        clean(f"  {'alike' if not i else '':<10}{line}") for i, line in enumerate(group.cases())
    ]
    return [head, *rest[:-1], *alike, rest[-1]]
