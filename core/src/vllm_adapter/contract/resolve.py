"""Who runs a case: candidates x facts x policy -> picks by phase, or a refusal.

The one place that decides. `bind` adds imports and overloads to its answer, `explain` prints it,
and conformance makes its cases from it, with the one adapter under test. Every candidate is
asked and every decision kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import (
    Accept,
    Decision,
    OperatorEntry,
    Reject,
    decide,
    headline,
)
from vllm_adapter.contract.operators import (
    DTYPES,
    OPERATORS,
    SCHEMES,
    FactValue,
    Operator,
    operator,
)
from vllm_adapter.errors import AdapterError, SettingError
from vllm_adapter.settings import Fallback, Settings

Facts = Mapping[str, FactValue]
Step = FactValue | None
"""A value of the operator's step fact; None where it has none."""

GENERIC: Final = "torch"
"""The provider name of core's own portable code."""
RANKS: Final[Mapping[str, str]] = {
    "override": "VA_OPS names it",
    "device": "the device's own adapter",
    "kernels": "an adapter of kernels only, behind the device's own",
    "generic": "core's portable torch code, behind every adapter",
}
"""Why a candidate stands where it does, best rank first."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelCandidate:
    """One entry of one provider, for one operator. `composed_of`: it runs that one's entry."""

    provider: str
    rank: str
    entry: OperatorEntry
    composed_of: str | None = None

    def declared_for(self, op: str) -> Operator:
        """The operator whose entry this is, where it is a candidate for `op`."""
        return OPERATORS[self.composed_of or op]


Check = Callable[[KernelCandidate, Operator], Reject | None]
"""What a descriptor cannot know: whether the C library really has what an entry names."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An adapter whose implementations may run on a device. `rank`: "device" or "kernels".

    `beside` is the adapter of the device whose models alone it serves; None: any.
    """

    name: str
    rank: str
    entries: Mapping[str, Sequence[OperatorEntry]]
    beside: str | None = None

    @classmethod
    def of(
        cls,
        name: str,
        capability: Capability,
        *,
        kernels_only: bool = False,
        extra: Iterable[tuple[str, OperatorEntry]] = (),
    ) -> Provider:
        """An adapter's descriptor, and what its `implementations` hook gives beyond it."""
        entries = {op: list(declared) for op, declared in capability.operators.items()}
        for op, entry in extra:
            if all(known.run != entry.run for known in entries.get(op, ())):
                entries.setdefault(op, []).append(entry)
        return cls(name, "kernels" if kernels_only else "device", entries)


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """What one candidate said of the case. `fault`: its own code failed when it was asked."""

    candidate: KernelCandidate
    decision: Decision
    fault: AdapterError | None = None

    def accepts(self, fact: str | None, value: Step) -> bool:
        """Whether it takes the case at a value of the step fact."""
        if isinstance(self.decision, Reject):
            return False
        return fact is None or value in self.decision.when.get(fact, (value,))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing runs a case: at `step`, by the reason that says most."""

    reject: Reject
    step: Facts
    asked: tuple[str, ...]
    """The providers that were asked, best rank first."""
    forced: str | None = None
    """The provider that VA_OPS asks for."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The answer for one case: the picks for each value of the step fact, or a refusal."""

    operator: Operator
    facts: Facts
    verdicts: tuple[CandidateResult, ...]
    """Every candidate's, best rank first."""
    picks: Mapping[Step, KernelCandidate] = field(default_factory=dict)
    fallbacks: Mapping[Step, Reject] = field(default_factory=dict)
    """Where the policy lets core's portable code step in: why no adapter serves that step."""
    refusal: Refusal | None = None

    @property
    def winners(self) -> tuple[KernelCandidate, ...]:
        """The picks, each once, in the order of the steps."""
        return tuple(dict.fromkeys(self.picks.values()))

    def step(self, value: Step) -> dict[str, FactValue]:
        """A value of the step fact, by the fact's name."""
        return {} if value is None else {self.operator.step_facts[0]: value}


def resolve(
    op: str,
    facts: Facts,
    providers: Sequence[Provider],
    settings: Settings,
    *,
    check: Check | None = None,
    direct: bool = False,
    where: str = "the device",
) -> Resolution:
    """Asks every candidate, and picks the first that accepts, for each value of the step fact.

    `facts` holds the dtype and every bind fact. `direct`: a call without a load and a step, which
    one entry must serve in any phase. `where` stands in messages.

    Raises:
        SettingError, InputError: as `candidates`.
        AdapterError: a candidate's own code failed, and no better one accepts.
    """
    asked = OPERATORS[op]
    facts = dict(sorted(facts.items()))  # a refusal quotes them, and must read alike for all
    found = candidates(op, providers, settings, where)
    verdicts = tuple(_verdict(asked, one, facts, settings, check, direct) for one in found)
    forced = settings.ops.get(op)
    considered = [v for v in verdicts if forced in (None, v.candidate.provider)]
    fact = next(iter(asked.step_facts), None)
    values: tuple[Step, ...] = (None,) if fact is None else asked.facts[fact].samples
    picks: dict[Step, KernelCandidate] = {}
    fallbacks: dict[Step, Reject] = {}
    for value in values:
        step = {} if fact is None or value is None else {fact: value}
        winner = _first(considered, fact, value)
        if winner is None:
            names = tuple(dict.fromkeys(v.candidate.provider for v in considered))
            reason = _reason(asked, facts, considered, step, bool(providers))
            refusal = Refusal(reason, step, names, forced)
            return Resolution(asked, facts, verdicts, refusal=refusal)
        picks[value] = winner
        if winner.rank == "generic":
            fallbacks[value] = _reason(asked, facts, considered, step, bool(providers))
    return Resolution(asked, facts, verdicts, picks, fallbacks)


def candidates(
    op: str, providers: Sequence[Provider], settings: Settings, where: str = "the device"
) -> list[KernelCandidate]:
    """Every candidate for an operator, best first; core's portable code is always one.

    Inside a rank the order of `providers` and of their entries decides. What VA_ADAPTERS blocks
    is none. Where `settings.adapter` names the device's adapter, others that own the device are
    none either, unless VA_OPS names them: who opened what before must not matter.

    Raises:
        SettingError: VA_OPS names a provider that there is not.
        InputError: VA_OPS names an operator that there is not.
    """
    usable = _usable(providers, settings)
    chosen = _override(op, usable, settings, where)
    composed = OPERATORS[op].composed_of
    found = []
    for provider in usable:
        rank = "override" if provider.name == chosen else provider.rank
        if rank == "device" and settings.adapter not in (None, provider.name):
            continue
        found += [KernelCandidate(provider.name, rank, e) for e in provider.entries.get(op, ())]
        if composed:
            parts = provider.entries.get(composed, ())
            found += [KernelCandidate(provider.name, rank, e, composed) for e in parts]
    rank = "override" if chosen == GENERIC else "generic"
    found.append(KernelCandidate(GENERIC, rank, _GENERIC_ENTRIES[op]))
    order = tuple(RANKS)
    return sorted(found, key=lambda candidate: order.index(candidate.rank))


def _usable(providers: Sequence[Provider], settings: Settings) -> list[Provider]:
    """Those that VA_ADAPTERS lets serve beside the named adapter, each name once."""
    found: dict[str, Provider] = {}
    for provider in providers:
        beside_another = provider.beside is not None and settings.adapter not in (
            None,
            provider.beside,
        )
        if not beside_another and settings.adapters.blocks(provider.name) is None:
            found.setdefault(provider.name, provider)
    return list(found.values())


def _override(
    op: str, providers: Sequence[Provider], settings: Settings, where: str
) -> str | None:
    for name in settings.ops:
        operator(name)
    chosen = settings.ops.get(op)
    names = [*(p.name for p in providers), GENERIC]
    if chosen is not None and chosen not in names:
        raise SettingError(
            f"VA_OPS={op}:{chosen} names a provider that does not serve {where}",
            hint=f"use one of: {', '.join(names)}",
        )
    return chosen


def _verdict(
    asked: Operator,
    candidate: KernelCandidate,
    facts: Facts,
    settings: Settings,
    check: Check | None,
    direct: bool,
) -> CandidateResult:
    declared, entry = candidate.declared_for(asked.name), candidate.entry
    decision, fault = _decide(declared, entry, facts)
    if fault is not None:
        return CandidateResult(candidate, decision, fault)
    if isinstance(decision, Accept) and check is not None:
        decision = check(candidate, declared) or decision
    if isinstance(decision, Accept) and direct and not _serves_direct(declared, entry, decision):
        decision = Reject(
            "a direct call has no load and no step, which this entry needs",
            entry.pointer,
            "a direct call",
            "bind()",
        )
    if candidate.rank == "generic" and settings.fallback is Fallback.ERROR:
        decision = Reject("VA_FALLBACK=error", entry.pointer, "error", "warn or allow")
    return CandidateResult(candidate, decision)


def _decide(
    declared: Operator, entry: OperatorEntry, facts: Facts
) -> tuple[Decision, AdapterError | None]:
    """An entry's decision, or the fault of its own code."""
    try:
        return decide(declared, entry, facts), None
    except AdapterError as fault:
        at = f"{entry.pointer}/supports"
        return Reject("its own supports failed", at, fault.message, None), fault


def _serves_direct(declared: Operator, entry: OperatorEntry, accept: Accept) -> bool:
    """A direct call has no load and no step: no prepared weights, no plan, any phase."""
    whole = (
        len(served) == len(declared.facts[name].samples) for name, served in accept.when.items()
    )
    return not entry.plan and not entry.prepare_weights and all(whole)


def _first(
    verdicts: Sequence[CandidateResult], fact: str | None, value: Step
) -> KernelCandidate | None:
    """The best that accepts. Of who failed when asked, only a worse one is passed over."""
    for verdict in verdicts:
        if verdict.fault is not None:
            raise verdict.fault
        if verdict.accepts(fact, value):
            return verdict.candidate
    return None


def _reason(
    asked: Operator, facts: Facts, verdicts: Sequence[CandidateResult], step: Facts, anybody: bool
) -> Reject:
    """The refusal that says most of a step, among those of adapters."""
    at_step = [
        _at_step(asked, facts, verdict, step)
        for verdict in verdicts
        if verdict.candidate.provider != GENERIC or verdict.candidate.rank == "override"
    ]
    best = headline(at_step)
    if best is not None:
        return best
    what = f"{asked.name} is not declared" if anybody else "no adapter is in use there"
    return Reject(what, f"/operators/{asked.name}", None, "an entry")


def _at_step(asked: Operator, facts: Facts, verdict: CandidateResult, step: Facts) -> Decision:
    """A decision with the step fact settled too: acceptance of other steps is no help."""
    if isinstance(verdict.decision, Reject) or not step:
        return verdict.decision
    candidate = verdict.candidate
    declared = candidate.declared_for(asked.name)
    return _decide(declared, candidate.entry, {**facts, **step})[0]


_BOTH: Final = (False, True)
_ANY: Final = {"min": 0}
_LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {
    "linear": {"bias": _BOTH},
    "quantized_linear": {"bias": _BOTH, "scheme": SCHEMES},
    "layer_norm": {"bias": _BOTH},
    "gelu": {"tanh": _BOTH},
    "gelu_and_mul": {"tanh": _BOTH},
    "rotary_embedding": {"interleaved": _BOTH, "partial": _BOTH},
    "paged_attention": {"window": _ANY, "soft_cap": _ANY},
    "attention": {"causal": _BOTH, "window": _ANY, "soft_cap": _ANY},
}
"""The features that core's portable code serves."""
_GENERIC_ENTRIES: Final = {
    op: OperatorEntry(
        support="full",
        pointer=f"{GENERIC}:/operators/{op}",
        dtypes=DTYPES,
        limits=_LIMITS.get(op, {}),
        form="torch",
        run=f"vllm_adapter.engine.ops.generic:{op}",
    )
    for op in OPERATORS
}
