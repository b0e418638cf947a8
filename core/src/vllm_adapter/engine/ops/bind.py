"""OpCase -> decisions -> Binding, when a layer is built; and the default overloads.

All candidates are walked and every decision is kept, then the best that accepts is bound. A
refusal is `UnsupportedCase`. An exception in a kernel is an error, never a reason to try the
next implementation.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vllm_adapter.decision import Accept, Decision, Reject, decide, headline
from vllm_adapter.engine.ops import clib, library
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.plans import PLANS, new_handle, picked, planned
from vllm_adapter.engine.ops.providers import GENERIC, PROVIDERS, Candidate, resolve
from vllm_adapter.engine.ops.spec import Facts, Fn, OpCase, OpSpec
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.errors import UnsupportedCase
from vllm_adapter.operators import OPERATORS, FactValue
from vllm_adapter.settings import Fallback, Settings

_log = logging.getLogger("vllm_adapter.ops")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one candidate said of the case."""

    candidate: Candidate
    decision: Decision


@dataclass(frozen=True, eq=False)
class Binding:
    """A case bound to what runs it. Layers keep `run` (and `handle`), not the Binding.

    `run` takes the operator's own arguments: it is the plain function, the provider's overload,
    or `<op>.selected` where winners differ by phase.
    """

    case: OpCase
    verdicts: Sequence[Verdict]
    run: Fn
    handle: int
    picks: Mapping[FactValue | None, Candidate]
    """The winner for each value of the step fact; under None where there is no step fact."""
    _plans: Mapping[Candidate, Fn] = field(default_factory=dict)
    _kernels: Mapping[Candidate, Fn] = field(default_factory=dict)
    _prepare: Fn | None = None

    @property
    def providers(self) -> tuple[str, ...]:
        """Names of the winners, in order of phase, each once."""
        return tuple(dict.fromkeys(describe(c) for c in self.picks.values()))

    def prepare_weights(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight as the winner wants it: the load moment."""
        return weight if self._prepare is None else self._prepare(weight)

    def plan(self, step: Step) -> None:
        """The step moment, once for all layers that share this binding; outside any graph."""
        winner = self.picks[step.phase]
        slot = PLANS[self.handle]
        make = self._plans.get(winner)
        if make:
            # Each winner gets its own buffers back, whatever ran in between.
            slot.kept[winner] = make(step, slot.kept.get(winner))
        slot.state = slot.kept.get(winner)
        slot.pick = self._kernels[winner]


def bind(case: OpCase, settings: Settings | None = None, owner: object = None) -> Binding:
    """Binds a case; equal cases with one owner (their KV cache) share one binding.

    Raises:
        UnsupportedCase: nothing accepts the case under the policy.
        SettingError: VA_OPS names something that there is not.
        AdapterError: a winner cannot be imported.
    """
    settings = settings or Settings.from_environ()
    policy = settings.fallback, tuple(settings.ops.items()), settings.adapter
    key = (case, policy, PROVIDERS.generation)
    bound = _bound if owner is None else _bound_for.setdefault(owner, {})
    if key not in bound:
        bound[key] = _bind(case, settings, owner)
    return bound[key]


_bound: Final[dict[tuple[Any, ...], Binding]] = {}
_bound_for: Final[weakref.WeakKeyDictionary[object, dict[tuple[Any, ...], Binding]]] = (
    weakref.WeakKeyDictionary()
)
"""By owner: a KV cache that nobody uses any more takes its bindings, and what they plan, along."""


def decisions(case: OpCase, settings: Settings) -> list[Verdict]:
    """What every candidate says of a case, best rank first. No adapter's code is imported."""
    facts = dict(case.facts)
    found = []
    for candidate in PROVIDERS.candidates(case.op, case.device, settings):
        op = OPERATORS[candidate.composed_of or case.op]
        verdict: Decision = decide(op, candidate.entry, facts)
        if isinstance(verdict, Accept):
            verdict = clib.refusal(candidate.entry, op.name, case, candidate.provider) or verdict
        if candidate.rank == "generic" and settings.fallback is Fallback.ERROR:
            verdict = Reject(
                "VA_FALLBACK=error", candidate.entry.pointer, "error", "warn or allow"
            )
        found.append(Verdict(candidate, verdict))
    return found


def describe(candidate: Candidate) -> str:
    """A winner as documents name it: "acme", "acme (composed)", "acme (long)"."""
    notes = ["composed"] if candidate.composed_of else []
    notes += [candidate.entry.variant] if candidate.entry.variant else []
    return f"{candidate.provider} ({', '.join(notes)})" if notes else candidate.provider


def _bind(case: OpCase, settings: Settings, owner: object) -> Binding:
    spec = SPECS[case.op]
    verdicts = decisions(case, settings)
    picks = _pick(spec, case, verdicts, settings)
    winners = list(dict.fromkeys(picks.values()))
    _warn_of_fallback(case, picks, verdicts, settings)
    kernels = {winner: _kernel(spec, winner) for winner in winners}
    plans = {winner: plan for winner in winners if (plan := _plan_of(spec, winner))}
    prepare = winners[0].entry.prepare_weights
    return Binding(
        case=case,
        verdicts=verdicts,
        run=_runnable(spec, case, winners, kernels),
        handle=new_handle(owner) if spec.operator.planned else 0,
        picks=picks,
        _plans=plans,
        _kernels=kernels,
        _prepare=resolve(prepare, winners[0].provider) if prepare else None,
    )


def _pick(
    spec: OpSpec, case: OpCase, verdicts: Sequence[Verdict], settings: Settings
) -> dict[FactValue | None, Candidate]:
    """The first candidate that accepts, for each value of the step fact; or a refusal."""
    step_facts = spec.operator.step_facts
    values: tuple[FactValue | None, ...] = (None,)
    if step_facts:
        values = spec.operator.facts[step_facts[0]].samples
    picks: dict[FactValue | None, Candidate] = {}
    for value in values:
        able = [
            v.candidate
            for v in verdicts
            if isinstance(v.decision, Accept)
            and (value is None or value in v.decision.when[step_facts[0]])
        ]
        forced = settings.ops.get(case.op)
        if not able or (forced and able[0].provider != forced):
            at_step = [_at_step(case, v, _step_of(case, value)) for v in verdicts]
            raise refusal(case, at_step, forced)
        picks[value] = able[0]
    return picks


def _at_step(case: OpCase, verdict: Verdict, step: Facts) -> Verdict:
    """A verdict with the step fact settled too: acceptance of other steps is no help."""
    if isinstance(verdict.decision, Reject):
        return verdict
    candidate = verdict.candidate
    op = OPERATORS[candidate.composed_of or case.op]
    return Verdict(candidate, decide(op, candidate.entry, {**dict(case.facts), **step}))


def refusal(
    case: OpCase, verdicts: Sequence[Verdict], forced: str | None = None
) -> UnsupportedCase:
    """The error for a case that nothing runs: the reason that says most, then all providers."""
    rejects = [(v.candidate, v.decision) for v in verdicts if isinstance(v.decision, Reject)]
    if forced:
        rejects = [(c, d) for c, d in rejects if c.provider == forced]
    own = [d for c, d in rejects if c.provider != GENERIC] or [d for _, d in rejects]
    best = headline(own)
    providers = ", ".join(dict.fromkeys(c.provider for c, _ in rejects)) or "nobody"
    asked = f" (VA_OPS asks for {forced})" if forced else ""
    adapter = next((c.provider for c, _ in rejects if c.provider != GENERIC), None)
    shows = f"explain {adapter} {case.op}` shows every decision" if adapter else "list`"
    return UnsupportedCase(
        f"nothing runs {case}{asked}: {best or 'no adapter is in use there'}",
        hint=f"asked: {providers}; `vllm-adapter {shows}",
    )


def _kernel(spec: OpSpec, candidate: Candidate) -> Fn:
    """The function behind a candidate, taking the operator's own arguments."""
    run: Fn = resolve(_dotted(candidate), candidate.provider)
    if candidate.composed_of:
        assert spec.compose is not None
        return spec.compose(run)
    return planned(run) if spec.operator.planned else run


def _plan_of(spec: OpSpec, candidate: Candidate) -> Fn | None:
    """How the candidate prepares a step, if it does."""
    if candidate.entry.plan:
        found: Fn = resolve(candidate.entry.plan, candidate.provider)
        return found
    return clib.plan_of(candidate.entry, spec.name)


def _dotted(candidate: Candidate) -> str:
    assert candidate.entry.run is not None
    return candidate.entry.run


def _runnable(
    spec: OpSpec, case: OpCase, winners: Sequence[Candidate], kernels: Mapping[Candidate, Fn]
) -> Fn:
    if len(winners) > 1:
        found: Fn = library.overload(spec, "selected", picked, library.ANY_DEVICE, "selected")
        return found
    winner = winners[0]
    if winner.entry.form == "torch" and not spec.operator.opaque:
        return kernels[winner]
    key = library.dispatch_key(torch.device(case.device).type)
    if winner.composed_of:
        part = SPECS[winner.composed_of]
        assert spec.compose is not None
        return spec.compose(_overload(part, winner, _kernel(part, _part_of(winner)), key))
    return _overload(spec, winner, kernels[winner], key)


def _part_of(candidate: Candidate) -> Candidate:
    return Candidate(candidate.provider, candidate.rank, candidate.entry)


def _overload(spec: OpSpec, winner: Candidate, kernel: Fn, key: str) -> Fn:
    provider = "core" if winner.provider == GENERIC else winner.provider
    name = "_".join(filter(None, (provider, winner.entry.variant)))
    found: Fn = library.overload(spec, name, kernel, key, _dotted(winner))
    return found


_warned: Final[set[tuple[str, str, str]]] = set()


def _warn_of_fallback(
    case: OpCase,
    picks: Mapping[FactValue | None, Candidate],
    verdicts: Sequence[Verdict],
    settings: Settings,
) -> None:
    """One sentence for each reason why core's code runs an operator: its own, for each step."""
    if settings.fallback is not Fallback.WARN:
        return
    for value, winner in picks.items():
        if winner.rank != "generic":
            continue
        step = _step_of(case, value)
        at_step = (_at_step(case, verdict, step) for verdict in verdicts)
        own = [v.decision for v in at_step if v.candidate.provider != GENERIC]
        who = f"adapter {settings.adapter} does not declare" if settings.adapter else None
        reason = str(headline(own) or f"{who or 'no adapter in use declares'} the operator")
        if (case.op, case.device, reason) not in _warned:
            _warned.add((case.op, case.device, reason))
            _log.warning(
                "%s%s runs on core's portable torch code, which is slow: %s; "
                "VA_FALLBACK=error refuses it",
                case,
                "".join(f" at {name}={at}" for name, at in step.items()),
                reason,
            )


def _step_of(case: OpCase, value: FactValue | None) -> dict[str, FactValue]:
    """A value of the step fact, by the fact's name; empty where there is no such fact."""
    return {} if value is None else {OPERATORS[case.op].step_facts[0]: value}


def _declare_default(spec: OpSpec) -> None:
    """`<op>.default`: one look-up by key, then the kernel itself."""
    table: dict[tuple[Any, ...], Fn] = {}
    generation = -1

    def winner(*args: Any) -> Candidate:
        settings = Settings.from_environ()
        case = OpCase.of(spec.name, _device_of(args), spec.facts_of(*args))
        verdicts = decisions(case, settings)
        direct = [v if _serves_direct(spec, v) else _needs_bind(v) for v in verdicts]
        picks = _pick(spec, case, direct, settings)
        _warn_of_fallback(case, picks, direct, settings)
        return next(iter(picks.values()))

    def direct(*args: Any) -> Any:
        nonlocal generation
        if generation != PROVIDERS.generation:
            table.clear()
            generation = PROVIDERS.generation
        key = spec.key_of(*args)
        kernel = table.get(key)
        if kernel is None:
            kernel = table[key] = _kernel(spec, winner(*args))
        return kernel(*args)

    def fake(*args: Any) -> Any:
        winner(*args)
        return spec.fake(*args)

    library.define_default(spec, direct, fake)


def _serves_direct(spec: OpSpec, verdict: Verdict) -> bool:
    """A direct call has no load and no step: no prepared weights, no plan, any phase."""
    entry, decision = verdict.candidate.entry, verdict.decision
    if isinstance(decision, Reject):
        return True
    facts = spec.operator.facts
    phases = (len(served) == len(facts[name].samples) for name, served in decision.when.items())
    return not entry.plan and not entry.prepare_weights and all(phases)


def _needs_bind(verdict: Verdict) -> Verdict:
    pointer = verdict.candidate.entry.pointer
    reason = "a direct call has no load and no step, which this entry needs"
    return Verdict(verdict.candidate, Reject(reason, pointer, "a direct call", "bind()"))


def _device_of(args: Sequence[Any]) -> torch.device:
    return next(a.device for a in args if isinstance(a, torch.Tensor))


for _spec in SPECS.values():
    _declare_default(_spec)
