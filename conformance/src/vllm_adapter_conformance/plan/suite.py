"""From rules and a target to the items of one run: which cases, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vllm_adapter_conformance.base.rule import LEVELS, Case, Failure, NotDeclaredCase, Rule

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.target import Target

NO_CASE: Final = "no case"


@dataclass(frozen=True, slots=True)
class SuiteItem:
    """One case of one rule: one pytest item, named by `id`."""

    rule: Rule
    case: Case

    @property
    def id(self) -> str:
        """Such as "L1.copy.round_trip[4097 bytes]"."""
        return f"{self.rule.id}[{self.case.id}]"


@dataclass(frozen=True)
class SuitePlan:
    """What one run collects, in order: a rule comes after all that it needs."""

    rules: Sequence[Rule]
    items: Sequence[SuiteItem]
    not_declared: Mapping[str, Sequence[NotDeclaredCase]] = field(default_factory=dict)

    def item(self, id: str) -> SuiteItem:
        """The item of that id; KeyError if it is not in the plan."""
        found = next((item for item in self.items if item.id == id), None)
        if found is None:
            raise KeyError(id)
        return found

    def of_rule(self, id: str) -> list[SuiteItem]:
        """The items of one rule."""
        return [item for item in self.items if item.rule.id == id]


def levels_up_to(level: str) -> tuple[str, ...]:
    """A level and all below it."""
    return LEVELS[: LEVELS.index(level) + 1]


def make_plan(
    target: Target,
    level: str,
    rules: Mapping[str, Rule],
    *,
    only: Collection[str] = (),
) -> SuitePlan:
    """The cases of every one of the rules up to a level; `only` keeps the items of these ids.

    Raises:
        ValueError: the rules contradict themselves (a defect of the suite).
    """
    levels = levels_up_to(level)
    ordered = in_order([rule for rule in rules.values() if rule.level in levels])
    items: list[SuiteItem] = []
    not_declared: dict[str, list[NotDeclaredCase]] = {}
    for rule in ordered:
        found = list(rule.cases(target))
        absent = [case for case in found if isinstance(case, NotDeclaredCase)]
        cases = [case for case in found if isinstance(case, Case)]
        ids = [case.id for case in found]
        if len(set(ids)) != len(ids):
            raise ValueError(f"the rule {rule.id} has two cases of one id: {sorted(ids)}")
        items += [SuiteItem(rule, case) for case in cases or ([] if absent else [Case(NO_CASE)])]
        not_declared[rule.id] = absent
    kept = [item for item in items if not only or item.id in only]
    return SuitePlan(ordered, kept, not_declared)


def in_order(rules: Iterable[Rule]) -> list[Rule]:
    """By level, and inside a level each rule after those that it needs.

    Raises:
        ValueError: rules that need each other, or one of a higher level, or one that is not there.
    """
    waiting = sorted(rules, key=lambda rule: LEVELS.index(rule.level))
    placed: dict[str, Rule] = {}
    while waiting:
        ready = next((r for r in waiting if all(need in placed for need in r.needs)), None)
        if ready is None or ready.level != waiting[0].level:
            raise ValueError(f"the needs of {waiting[0].id} cannot be met: {waiting[0].needs}")
        placed[ready.id] = ready
        waiting.remove(ready)
    return list(placed.values())


def no_case_failure(rule: Rule) -> Failure:
    """What is wrong with a rule that has nothing to check."""
    return Failure(
        f"at least one case of {rule.id}",
        "the descriptor gives none, neither declared nor refused",
        detail="A rule without a case would pass whatever the adapter does.",
    )
