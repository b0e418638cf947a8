"""What a descriptor decides over sample cases, and what another descriptor would change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_adapter.capability import Capability
from vllm_adapter.decision import (
    Accept,
    Decision,
    OperatorEntry,
    Reject,
    decide,
    decide_all,
    headline,
    holds,
)
from vllm_adapter.operators import FactValue, Operator

Case = dict[str, FactValue]


@dataclass(frozen=True, slots=True)
class Verdict:
    """All entries' decisions over one case. `entry` is the first that accepts, or None.

    `label` says in what the case differs from the usual one, which is the first of its list.
    """

    operator: Operator
    case: Mapping[str, FactValue]
    label: str
    entry: OperatorEntry | None
    decisions: tuple[Decision, ...]

    @property
    def word(self) -> str:
        """accept or reject."""
        return "reject" if self.entry is None else "accept"

    @property
    def why(self) -> str:
        """The pointer of the entry that accepts, or the refusal that says most."""
        if self.entry is not None:
            return self._when(self.entry.pointer + self._composed)
        reject = headline(self.decisions)
        return str(reject) if reject else "not declared"

    @property
    def summary(self) -> str:
        """The decision without pointers, which move when entries do."""
        if self.entry is not None:
            return self._when(f"accept: {self.entry.run}{self._composed}")
        reject = headline(self.decisions)
        return f"reject: {reject.reason}" if reject else "reject: not declared"

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "case": dict(self.case),
            "decision": self.word,
            "run": self.entry.run if self.entry else None,
            "why": self.why,
            "entries": [_plain(decision) for decision in self.decisions],
        }

    @property
    def _composed(self) -> str:
        """A remark, if the entry that accepts is of the part that the operator is composed of."""
        own = f"/operators/{self.operator.name}"
        pointer = self.entry.pointer if self.entry else own
        return "" if pointer == own or pointer.startswith(f"{own}/") else ", composed"

    def _when(self, text: str) -> str:
        """`text`, with the values of the step facts of which only some are accepted."""
        for name in self.operator.step_facts:
            samples = self.operator.facts[name].samples
            some = [v for v in samples if any(v in _when(d, name) for d in self.decisions)]
            if len(some) < len(samples):
                text += f", only {name} {' or '.join(map(str, some))}"
        return text


def _when(decision: Decision, fact: str) -> tuple[FactValue, ...]:
    return decision.when[fact] if isinstance(decision, Accept) else ()


@dataclass(frozen=True, slots=True)
class Change:
    """One case that two descriptors decide differently."""

    old: Verdict
    new: Verdict


def entries_for(operator: Operator, capability: Capability) -> tuple[OperatorEntry, ...]:
    """What a descriptor offers for an operator: its own entries, then those it is composed of."""
    names = filter(None, (operator.name, operator.composed_of))
    return tuple(entry for name in names for entry in capability.operators.get(name, ()))


def verdicts(operator: Operator, entries: Sequence[OperatorEntry]) -> list[Verdict]:
    """The decisions over the sample cases of one operator's entries."""
    cases = sample_cases(operator, entries)
    return [_verdict(operator, entries, case, cases[0]) for case in cases]


def changes(operator: Operator, old: Capability, new: Capability) -> list[Change]:
    """The sample cases, of either descriptor, that the two decide differently."""
    before, after = entries_for(operator, old), entries_for(operator, new)
    cases = sample_cases(operator, before)
    cases += [case for case in sample_cases(operator, after) if case not in cases]
    pairs = [
        Change(*(_verdict(operator, entries, case, cases[0]) for entries in (before, after)))
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


def _verdict(
    operator: Operator, entries: Sequence[OperatorEntry], case: Case, usual: Case
) -> Verdict:
    decisions = decide_all(operator, entries, case)
    pairs = zip(entries, decisions, strict=True)
    winner = next((entry for entry, d in pairs if isinstance(d, Accept)), None)
    different = {name: value for name, value in case.items() if usual[name] != value}
    label = case_text(different) if different else "the usual case"
    return Verdict(operator, case, label, winner, tuple(decisions))


def case_text(case: Mapping[str, FactValue]) -> str:
    """A case as `fact=value` words."""
    return " ".join(f"{name}={value}" for name, value in case.items())


def entry_line(entry: OperatorEntry) -> str:
    """One entry as a line: what it declares, and where it stands."""
    words = [entry.support, *entry.dtypes]
    if entry.limits:
        words.append(json.dumps(entry.limits))
    if entry.declares:
        words += [f"form {entry.form}", f"run {entry.run}"]
    return f"{entry.pointer}: {' '.join(words)}"


def _plain(decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Reject):
        return {
            "decision": "reject",
            "reason": decision.reason,
            "pointer": decision.pointer,
            "got": decision.got,
            "need": decision.need,
        }
    when = {name: list(values) for name, values in decision.when.items()}
    return {"decision": "accept", "pointer": decision.pointer, "when": when}
