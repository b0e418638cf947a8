"""Operator cases from a descriptor, without torch: what it declares, and what it refuses.

A case settles the dtype and every bind fact. For each entry and dtype there is a base case, and
from it one fact is varied at a time: the product of all values would be thousands of cases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import (
    Accept,
    Decision,
    OperatorEntry,
    Reject,
    Rule,
    decide,
    holds,
)
from vllm_adapter.contract.operators import DTYPES, OPERATORS, CaseProperty, FactValue, Operator
from vllm_adapter.contract.resolve import Provider, Resolution, resolve
from vllm_adapter.errors import CapabilityError
from vllm_adapter.settings import Fallback, Settings
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase
from vllm_adapter_conformance.base.target import Target

Facts = dict[str, FactValue]

ADAPTER: Final = "adapter"
"""The name under which the descriptor's adapter is asked."""
ALONE: Final = Settings(fallback=Fallback.ERROR)
FOREIGN_DTYPE: Final = "float64"
"""No descriptor can declare it, so that each operator has a case that must be refused."""


@dataclass(frozen=True)
class OpFacts:
    """One case of an operator. `refusal` is None where the descriptor declares it."""

    op: str
    facts: Facts
    refusal: Reject | None
    pointer: str | None = None
    """The first entry that declares it."""

    @property
    def id(self) -> str:
        """The dtype, then every fact that is not its operator's first sample."""
        shown = [
            f"{name}={self.facts[name]}"
            for name in OPERATORS[self.op].bind_facts
            if self.facts[name] != OPERATORS[self.op].facts[name].samples[0]
        ]
        return "-".join([str(self.facts["dtype"]), *shown])

    def collected(self) -> Case | NotDeclaredCase:
        """This as a case of a rule: to be run, or to be listed with the reason."""
        if self.refusal is None:
            return Case(self.id, {"op": self.op, "facts": self.facts}, self.pointer)
        return NotDeclaredCase(self.id, self.refusal.pointer, str(self.refusal))


def declared(target: Target) -> Capability:
    """The target's descriptor; L0 fails first where there is none.

    Raises:
        CapabilityError: the target has none that could be read.
    """
    if target.capability is None:
        raise CapabilityError(
            f"adapter {target.record.name} has no descriptor that can be read",
            hint="`vllm-adapter validate` on its files shows why",
        )
    return target.capability


def variations(capability: Capability, op: str) -> list[OpFacts]:
    """Every base case and its variations, declared or not, each once; then dtypes not declared.

    An operator without a case that any entry accepts has one case a dtype.
    """
    operator = OPERATORS[op]
    bases = _bases(capability, operator)
    varied = [
        base | {name: value}
        for base in bases
        for name in operator.bind_facts
        for value in values(capability, operator, name)
    ]
    first = bases[0] if bases else {n: operator.facts[n].samples[0] for n in operator.bind_facts}
    spanned = {base["dtype"] for base in bases}
    others = [first | {"dtype": d} for d in (*DTYPES, FOREIGN_DTYPE) if d not in spanned]
    unique = {tuple(sorted(f.items())): f for f in [*bases, *varied, *others]}
    return [_settled(capability, op, facts) for facts in unique.values()]


def operator_cases(capability: Capability, op: str) -> Iterator[Case | NotDeclaredCase]:
    """The cases of a rule about one operator; the foreign dtype is nobody's to list."""
    for case in variations(capability, op):
        if case.facts["dtype"] != FOREIGN_DTYPE:
            yield case.collected()


def base_cases(capability: Capability, op: str) -> list[OpFacts]:
    """The declared base cases, one for each entry and dtype."""
    return [_settled(capability, op, facts) for facts in _bases(capability, OPERATORS[op])]


def large_facts(capability: Capability, base: OpFacts) -> Facts:
    """A base case with each size fact as large as is still declared, of what `values` tries."""
    facts = dict(base.facts)
    for name in OPERATORS[base.op].bind_facts:
        if OPERATORS[base.op].facts[name].off is None:
            for value in sorted(values(capability, OPERATORS[base.op], name), reverse=True):
                if refusal(capability, base.op, {**facts, name: value}) is None:
                    facts[name] = value
                    break
    return facts


def direct_case(capability: Capability, op: str) -> OpFacts | None:
    """A declared case that a direct call can run, if there is one.

    Such a call has no load and no step: an entry that prepares weights, plans, or serves some
    phases only, cannot take it.
    """
    cases = base_cases(capability, op)
    able = (c for c in cases if not resolved(capability, op, c.facts, direct=True).refusal)
    return next(able, None)


def undeclared(capability: Capability, op: str) -> list[OpFacts]:
    """The cases of `variations` that must be refused, and some next to the ends of limits.

    Never empty: the last one is of the foreign dtype.
    """
    operator = OPERATORS[op]
    found = variations(capability, op)
    known = {case.id for case in found}
    beyond = [
        _settled(capability, op, base | {name: value})
        for base in _bases(capability, operator)
        for name in operator.bind_facts
        for value in _beyond(capability, operator, name)
    ]
    others = {case.id: case for case in beyond if case.refusal and case.id not in known}
    refused = [case for case in found if case.refusal]
    return [*refused[:-1], *others.values(), refused[-1]]


def refusal(capability: Capability, op: str, facts: Mapping[str, FactValue]) -> Reject | None:
    """Why a case cannot be bound on this descriptor alone; None where it can.

    A layer meets every step, so each value of a step fact must be accepted by some entry.
    """
    found = resolved(capability, op, facts).refusal
    return None if found is None else found.reject


def resolved(
    capability: Capability, op: str, facts: Mapping[str, FactValue], *, direct: bool = False
) -> Resolution:
    """What `bind` resolves with this descriptor's adapter alone in use, under policy `error`."""
    return resolve(op, facts, [Provider.of(ADAPTER, capability)], ALONE, direct=direct)


def decisions(
    capability: Capability, op: str, facts: Mapping[str, FactValue]
) -> list[tuple[OperatorEntry, Decision]]:
    """What each entry says of a case, entries of the part that may compose it included."""
    verdicts = resolved(capability, op, facts).verdicts
    return [(v.candidate.entry, v.decision) for v in verdicts if v.candidate.provider == ADAPTER]


def values(capability: Capability, operator: Operator, name: str) -> tuple[FactValue, ...]:
    """What is tried for a fact: its samples, and what the descriptor's limits name beside them."""
    rules = [
        entry.limits[name]
        for _, entries in _entries(capability, operator)
        for entry in entries
        if entry.declares and name in entry.limits
    ]
    named = itertools.chain.from_iterable(_named(operator.facts[name], rule) for rule in rules)
    return tuple(dict.fromkeys([*operator.facts[name].samples, *named]))


def _settled(capability: Capability, op: str, facts: Facts) -> OpFacts:
    found = resolved(capability, op, facts)
    accepted = [
        v.candidate.entry.pointer for v in found.verdicts if isinstance(v.decision, Accept)
    ]
    reject = None if found.refusal is None else found.refusal.reject
    return OpFacts(op, facts, reject, next(iter(accepted), None))


def _entries(
    capability: Capability, operator: Operator
) -> list[tuple[Operator, Sequence[OperatorEntry]]]:
    parts = [operator] + ([OPERATORS[operator.composed_of]] if operator.composed_of else [])
    return [(part, capability.operators.get(part.name, ())) for part in parts]


def _named(fact: CaseProperty, rule: Rule) -> tuple[FactValue, ...]:
    """The values of a list; of bounds, the least value that keeps them, where they name one.

    Where the samples are not of that multiple, the next value too: one alone would prove little.
    """
    if isinstance(rule, tuple):
        return rule
    if not {"min", "multiple_of"} & set(rule):
        return ()
    step = rule.get("multiple_of", 1)
    least = math.ceil(max(rule.get("min", 0), step) / step) * step
    kind = type(fact.samples[0])
    named = [kind(least)]
    others = {value for value in fact.samples if holds(rule, value)} - {least}
    if "multiple_of" in rule and not others and holds(rule, kind(least + step)):
        named.append(kind(least + step))
    return tuple(named)


def _beyond(capability: Capability, operator: Operator, name: str) -> list[FactValue]:
    """The first values behind the ends of a size's bounds, in steps that the bounds have."""
    found: list[FactValue] = []
    for _, entries in _entries(capability, operator):
        for entry in entries:
            rule = entry.limits.get(name, {})
            if entry.declares and not isinstance(rule, tuple) and operator.facts[name].off is None:
                step = rule.get("multiple_of", 1)
                most = [math.floor(rule["max"] / step) * step + step] if "max" in rule else []
                least = [math.ceil(rule["min"] / step) * step - step] if "min" in rule else []
                kind = type(operator.facts[name].samples[0])
                found += [kind(value) for value in (*most, *least) if value > 0]
    return found


def _bases(capability: Capability, operator: Operator) -> list[Facts]:
    """For each entry and dtype, the first combination that can be bound and that it accepts."""
    names = operator.bind_facts
    tried = [values(capability, operator, name) for name in names]
    found: dict[tuple[Any, ...], Facts] = {}
    for part, entries in _entries(capability, operator):
        for entry in entries:
            for dtype in entry.dtypes if entry.declares else ():
                for combination in itertools.product(*tried):
                    facts: Facts = {"dtype": dtype, **dict(zip(names, combination, strict=True))}
                    if isinstance(decide(part, entry, facts), Accept) and not refusal(
                        capability, operator.name, facts
                    ):
                        found.setdefault(tuple(facts.items()), facts)
                        break
    return list(found.values())
