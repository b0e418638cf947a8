"""How a case ended, and what follows from it for the rules that need it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from vllm_adapter_conformance.base.rule import (
    Counters,
    Failure,
    Figures,
    Observation,
    Rule,
)
from vllm_adapter_conformance.judge.journal import Event, of
from vllm_adapter_conformance.judge.waivers import Waiver, find
from vllm_adapter_conformance.plan.suite import SuiteItem, SuitePlan

PASS: Final = "pass"
FAIL: Final = "fail"
WAIVED: Final = "waived"
BLOCKED: Final = "blocked"
SKIPPED: Final = "skipped"
"""A check called pytest.skip: no outcome of ours, and the end of the run's credit."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one item ended. `expected` and `seen` are short; `detail` may be long."""

    item: str
    outcome: str
    seconds: float | None = None
    share: float | None = None
    expected: str = ""
    seen: str = ""
    detail: str = ""
    note: str = ""
    blocked_by: str | None = None
    waiver: Mapping[str, Any] | None = None
    counters: Counters | None = None
    facts: Mapping[str, Any] | None = None
    figures: Figures | None = None
    cause: str = ""
    """One word for what wrong values look like."""

    def to_json(self) -> dict[str, Any]:
        """As the journal's event `end` holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Event) -> Result:
        """Reads an event `end`."""
        return cls(**{key: value for key, value in raw.items() if key != "event"})

    @property
    def message(self) -> str | None:
        """What a certificate says of it; None for a pass."""
        if self.outcome == PASS:
            return None
        if self.outcome == BLOCKED:
            return f"blocked by {self.blocked_by}"
        text = f"expected {self.expected}; saw {self.seen}"
        return f"{text}\n{self.detail}" if self.detail else text


def passed(
    item: SuiteItem, seen: Observation | None, seconds: float, waiver: Waiver | None
) -> Result:
    """A check that returned. Where a waiver says that it fails, that is a failure too."""
    seen = seen or Observation()
    if waiver is not None:
        return Result(
            item.id,
            FAIL,
            seconds,
            seen.share,
            expected=f"the failure that a waiver announces ({waiver.issue})",
            seen="it passes",
            detail="The suite's waiver has to go: it would hide the next failure.",
        )
    return Result(
        *(item.id, PASS, seconds, seen.share),
        note=seen.note,
        counters=seen.counters,
        facts=seen.facts,
        figures=seen.figures,
    )


def failed(
    item: SuiteItem,
    failure: Failure,
    seconds: float | None,
    waiver: Waiver | None,
    today: datetime.date | None = None,
) -> Result:
    """A check that did not hold, with its waiver if that has not expired."""
    result = Result(
        item.id,
        FAIL,
        seconds,
        failure.share,
        expected=failure.expected,
        seen=failure.seen,
        detail=failure.detail,
        figures=failure.figures,
        cause=failure.cause,
    )
    if waiver is None:
        return result
    today = today or datetime.datetime.now(datetime.UTC).date()
    if waiver.expires < today:
        ended = f"Its waiver ({waiver.issue}) expired on {waiver.expires}."
        return replace(result, detail="\n".join(filter(None, (result.detail, ended))))
    return replace(result, outcome=WAIVED, waiver=waiver.to_json())


def waiver_of(waivers: Sequence[Waiver], adapter: str, item: SuiteItem) -> Waiver | None:
    """The waiver of an item."""
    return find(waivers, adapter, item.rule.id, item.case.id)


def ended(events: Iterable[Event]) -> dict[str, Result]:
    """The last result of each item that has one."""
    return {event["item"]: Result.from_json(event) for event in of(events, "end")}


def blocker(rule: Rule, plan: SuitePlan, results: Mapping[str, Result]) -> str | None:
    """The first needed rule that has failed, or that is blocked itself (then: by whom)."""
    for need in rule.needs:
        for item in plan.of_rule(need):
            result = results.get(item.id)
            if result is not None and result.outcome == BLOCKED:
                return result.blocked_by
            if result is not None and result.outcome == FAIL:
                return need
    return None


def settle(plan: SuitePlan, events: Iterable[Event]) -> dict[str, Result]:
    """The result of each item that has one, in the plan's order.

    A result that came before the failure of a rule it needs is worth nothing: blocked.
    """
    found = ended(events)
    settled: dict[str, Result] = {}
    for item in plan.items:
        if item.id not in found:
            continue
        why = blocker(item.rule, plan, settled)
        settled[item.id] = (
            Result(item.id, BLOCKED, blocked_by=why) if why is not None else found[item.id]
        )
    return settled
