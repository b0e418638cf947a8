"""What a descriptor decides over sample cases, and what another descriptor would change.

Who runs a case is asked of `contract.resolve`, as `bind` does, with the candidates of this
machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Accept, OperatorEntry, Reject, decide, holds
from vllm_adapter.contract.operators import FactValue, Operator
from vllm_adapter.contract.resolve import (
    GENERIC,
    RANKS,
    CandidateResult,
    Check,
    KernelCandidate,
    Provider,
    Resolution,
    resolve,
)
from vllm_adapter.settings import Settings

Case = dict[str, FactValue]
_CORE: Final = "core's portable code"


@dataclass(frozen=True)
class Question:
    """Who is asked on a device, and under which settings. `adapter` is the one explained."""

    adapter: str
    providers: Sequence[Provider]
    settings: Settings
    where: str = "the device"
    check: Check | None = None

    def ask(self, operator: Operator, case: Mapping[str, FactValue]) -> Resolution:
        """Errors as `contract.resolve.resolve`."""
        return resolve(
            operator.name,
            case,
            self.providers,
            self.settings,
            check=self.check,
            where=self.where,
        )


@dataclass(frozen=True)
class Answer:
    """Who runs one case. `label` says in what it differs from the usual one, the first of all."""

    adapter: str
    case: Mapping[str, FactValue]
    label: str
    resolution: Resolution

    @property
    def word(self) -> str:
        """accept, reject, or fallback: core's portable code runs the case, or steps of it."""
        if self.resolution.refusal is not None:
            return "reject"
        return "fallback" if self.resolution.fallbacks else "accept"

    @property
    def why(self) -> str:
        """The entries that run it, by steps where they differ, or the refusal that says most."""
        refusal = self.resolution.refusal
        if refusal is not None:
            asked = f", and VA_OPS asks for {refusal.forced}" if refusal.forced else ""
            return f"{refusal.reject}{asked}"
        return "; ".join(map(self._winner, self.resolution.winners))

    @property
    def summary(self) -> str:
        """The decision without pointers, which move when entries do."""
        refusal = self.resolution.refusal
        if refusal is not None:
            return f"reject: {refusal.reject.reason}"
        return f"{self.word}: {'; '.join(map(self._runs, self.resolution.winners))}"

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        picks = self.resolution.picks
        winners = self.resolution.winners
        return {
            "case": dict(self.case),
            "decision": self.word,
            "run": winners[0].entry.run if winners else None,
            "picks": {str(step or "every step"): pick.provider for step, pick in picks.items()},
            "why": self.why,
            "entries": [_plain(verdict) for verdict in self.resolution.verdicts],
        }

    def _winner(self, winner: KernelCandidate) -> str:
        """Where a winner is declared; whose it is and why it ranks there, if not the explained."""
        fallback = self._fallback(winner)
        if fallback is not None:
            return f"{_CORE}{self._steps(winner)}: {fallback}"
        text = f"{winner.entry.pointer}{_composed(winner)}"
        if winner.provider == GENERIC:
            text = _CORE
        elif winner.provider != self.adapter:
            text = f"{winner.provider}: {text}"
        text += self._steps(winner)
        ranks = winner.rank == "override" or winner.provider != self.adapter
        return f"{text} ({RANKS[winner.rank]})" if ranks else text

    def _runs(self, winner: KernelCandidate) -> str:
        fallback = self._fallback(winner)
        run = winner.entry.run if fallback is None else f"{_CORE}, {fallback.reason}"
        return f"{run}{_composed(winner)}{self._steps(winner)}"

    def _fallback(self, winner: KernelCandidate) -> Reject | None:
        """Why core's code had to step in, if the winner is that."""
        if winner.rank != "generic":
            return None
        picks, reasons = self.resolution.picks, self.resolution.fallbacks
        return next(reasons[step] for step, pick in picks.items() if pick is winner)

    def _steps(self, winner: KernelCandidate) -> str:
        """The steps that a winner runs, where it does not run all."""
        picks = self.resolution.picks
        mine = [str(step) for step, pick in picks.items() if pick is winner]
        if len(mine) == len(picks):
            return ""
        return f", only {self.resolution.operator.step_facts[0]} {' or '.join(mine)}"


@dataclass(frozen=True, slots=True)
class Change:
    """One case that two descriptors decide differently."""

    old: Answer
    new: Answer


def entries_for(operator: Operator, capability: Capability) -> tuple[OperatorEntry, ...]:
    """What a descriptor offers for an operator: its own entries, then those it is composed of."""
    names = filter(None, (operator.name, operator.composed_of))
    return tuple(entry for name in names for entry in capability.operators.get(name, ()))


def answers(
    operator: Operator, question: Question, entries: Sequence[OperatorEntry]
) -> list[Answer]:
    """Who runs the sample cases that an adapter's entries for an operator suggest."""
    cases = sample_cases(operator, entries)
    return [_answer(operator, question, case, cases[0]) for case in cases]


def changes(
    operator: Operator, old: tuple[Question, Capability], new: tuple[Question, Capability]
) -> list[Change]:
    """The sample cases, of either descriptor, that the two decide differently."""
    cases = sample_cases(operator, entries_for(operator, old[1]))
    after = sample_cases(operator, entries_for(operator, new[1]))
    cases += [case for case in after if case not in cases]
    pairs = [
        Change(*(_answer(operator, one[0], case, cases[0]) for one in (old, new)))
        for case in cases
    ]
    return [pair for pair in pairs if pair.old.summary != pair.new.summary]


def sample_cases(operator: Operator, entries: Sequence[OperatorEntry]) -> list[Case]:
    """One case that is accepted if any is easily found, and each that differs in one fact."""
    base = _base(operator, entries)
    cases = [base]
    values: dict[str, Sequence[FactValue]] = {"dtype": operator.dtypes}
    values |= {name: operator.facts[name].samples for name in operator.bind_facts}
    for name, samples in values.items():
        cases += [case for value in samples if (case := base | {name: value}) not in cases]
    return cases


def _base(operator: Operator, entries: Sequence[OperatorEntry]) -> Case:
    """Off values and first samples, moved inside the limits of the first entry that declares."""
    for entry in (e for e in entries if e.declares):
        case: Case = {"dtype": entry.dtypes[0]}
        for name in operator.bind_facts:
            fact = operator.facts[name]
            usual = fact.samples if fact.off is None else (fact.off, *fact.samples)
            rule = entry.limits.get(name, {})
            case[name] = next((v for v in usual if holds(rule, v)), usual[0])
        if isinstance(decide(operator, entry, case), Accept):
            return case
    facts = ((name, operator.facts[name]) for name in operator.bind_facts)
    plain = {name: fact.samples[0] if fact.off is None else fact.off for name, fact in facts}
    return {"dtype": operator.dtypes[0]} | plain


def _answer(operator: Operator, question: Question, case: Case, usual: Case) -> Answer:
    different = {name: value for name, value in case.items() if usual[name] != value}
    label = case_text(different) if different else "the usual case"
    return Answer(question.adapter, case, label, question.ask(operator, case))


def case_text(case: Mapping[str, FactValue]) -> str:
    """A case as `fact=value` words."""
    return " ".join(f"{name}={value}" for name, value in case.items())


def entry_line(entry: OperatorEntry) -> str:
    """One entry as a line: what it declares, and where it stands."""
    words: list[str] = [entry.support, *entry.dtypes]
    if entry.limits:
        words.append(json.dumps(entry.limits))
    if entry.declares:
        words += [f"form {entry.form}", f"run {entry.run}"]
    return f"{entry.pointer}: {' '.join(words)}"


def _composed(winner: KernelCandidate) -> str:
    """A remark, if the entry is of the part that the operator is composed of."""
    return ", composed" if winner.composed_of else ""


def _plain(verdict: CandidateResult) -> dict[str, Any]:
    candidate, decision = verdict.candidate, verdict.decision
    who = {"provider": candidate.provider, "rank": candidate.rank, "why": RANKS[candidate.rank]}
    if isinstance(decision, Reject):
        return who | {
            "decision": "reject",
            "reason": decision.reason,
            "pointer": decision.pointer,
            "got": decision.got,
            "need": decision.need,
        }
    when = {name: list(values) for name, values in decision.when.items()}
    return who | {"decision": "accept", "pointer": decision.pointer, "when": when}
