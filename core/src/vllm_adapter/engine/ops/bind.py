"""OpCase -> resolution -> Binding, when a layer is built; and the default overloads.

Who runs a case is decided by `contract.resolve`; here its picks are imported and put behind
overloads. A refusal is `UnsupportedCase`. An exception in a kernel is an error, never a reason to
try the next implementation.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import FactValue, Operator
from vllm_adapter.contract.resolve import (
    GENERIC,
    CandidateResult,
    KernelCandidate,
    Refusal,
    Resolution,
    resolve,
)
from vllm_adapter.engine.ops import c_library as library_kernels
from vllm_adapter.engine.ops import library
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.plans import PLANS, new_handle, picked, planned
from vllm_adapter.engine.ops.providers import PROVIDERS, load
from vllm_adapter.engine.ops.spec import Fn, OpCase, OpSpec
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.engine.registries import on_reset
from vllm_adapter.errors import UnsupportedCase
from vllm_adapter.settings import Fallback, Settings

_log = logging.getLogger("vllm_adapter.ops")


@dataclass(frozen=True, eq=False)
class Binding:
    """A case bound to what runs it. Layers keep `run` (and `handle`), not the Binding.

    `run` takes the operator's own arguments: it is the plain function, the provider's overload,
    or `<op>.selected` where winners differ by phase.
    """

    case: OpCase
    verdicts: Sequence[CandidateResult]
    run: Fn
    handle: int
    picks: Mapping[FactValue | None, KernelCandidate]
    """The winner for each value of the step fact; under None where there is no step fact."""
    _plans: Mapping[KernelCandidate, Fn] = field(default_factory=dict)
    _kernels: Mapping[KernelCandidate, Fn] = field(default_factory=dict)
    _prepare: Fn | None = None

    @property
    def providers(self) -> tuple[str, ...]:
        """Names of the winners, in order of phase, each once."""
        return tuple(dict.fromkeys(describe(c) for c in self.picks.values()))

    def prepare_weights(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight as the winner wants it: the load moment.

        weight: [out, in] as checkpoints have it; the result is the kernel's own layout.
        """
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
        AdapterError: a winner cannot be imported, or somebody registered kernels past us.
    """
    settings = settings or Settings.from_environ()
    ops = tuple(settings.ops.items())
    policy = settings.fallback, ops, settings.adapter, settings.adapters
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


def resolved(case: OpCase, settings: Settings, *, direct: bool = False) -> Resolution:
    """Who runs a case, and what every candidate says of it. No kernel is imported.

    `direct`: in a call of the operator's default overload. Errors as `contract.resolve.resolve`.
    """

    def check(candidate: KernelCandidate, declared: Operator) -> Reject | None:
        return library_kernels.refusal(candidate.entry, declared.name, case, candidate.provider)

    return resolve(
        case.op,
        dict(case.facts),
        PROVIDERS.serving(case.device),
        settings,
        check=check,
        direct=direct,
        where=case.device,
    )


def describe(candidate: KernelCandidate) -> str:
    """A winner as documents name it: "acme", "acme (composed)", "acme (long)"."""
    notes = ["composed"] if candidate.composed_of else []
    notes += [candidate.entry.variant] if candidate.entry.variant else []
    return f"{candidate.provider} ({', '.join(notes)})" if notes else candidate.provider


def _bind(case: OpCase, settings: Settings, owner: object) -> Binding:
    spec = SPECS[case.op]
    found = resolved(case, settings)
    if found.refusal is not None:
        raise unsupported(case, found.refusal)
    _warn_of_fallback(case, found, settings)
    winners = found.winners
    kernels = {winner: _kernel(spec, winner) for winner in winners}
    plans = {winner: plan for winner in winners if (plan := _plan_of(spec, winner))}
    prepare = winners[0].entry.prepare_weights
    run = _runnable(spec, case, winners, kernels)
    library.refuse_foreign()
    return Binding(
        case=case,
        verdicts=found.verdicts,
        run=run,
        handle=new_handle(owner) if spec.operator.planned else 0,
        picks=found.picks,
        _plans=plans,
        _kernels=kernels,
        _prepare=load(prepare, winners[0].provider) if prepare else None,
    )


def unsupported(case: OpCase, refusal: Refusal) -> UnsupportedCase:
    """The error for a case that nothing runs: the reason that says most, then all providers."""
    asked = f" (VA_OPS asks for {refusal.forced})" if refusal.forced else ""
    adapter = next((name for name in refusal.asked if name != GENERIC), None)
    shows = f"explain {adapter} {case.op}` shows every decision" if adapter else "list`"
    return UnsupportedCase(
        f"nothing runs {case}{asked}: {refusal.reject}",
        hint=f"asked: {', '.join(refusal.asked) or 'nobody'}; `vllm-adapter {shows}",
    )


def _kernel(spec: OpSpec, candidate: KernelCandidate) -> Fn:
    """The function behind a candidate, taking the operator's own arguments."""
    run: Fn = load(_dotted(candidate), candidate.provider)
    if candidate.composed_of:
        assert spec.compose is not None
        return spec.compose(run)
    return planned(run) if spec.operator.planned else run


def _plan_of(spec: OpSpec, candidate: KernelCandidate) -> Fn | None:
    """How the candidate prepares a step, if it does."""
    if candidate.entry.plan:
        found: Fn = load(candidate.entry.plan, candidate.provider)
        return found
    return library_kernels.plan_of(candidate.entry, spec.name)


def _dotted(candidate: KernelCandidate) -> str:
    assert candidate.entry.run is not None
    return candidate.entry.run


def _runnable(
    spec: OpSpec,
    case: OpCase,
    winners: Sequence[KernelCandidate],
    kernels: Mapping[KernelCandidate, Fn],
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


def _part_of(candidate: KernelCandidate) -> KernelCandidate:
    return KernelCandidate(candidate.provider, candidate.rank, candidate.entry)


def _overload(spec: OpSpec, winner: KernelCandidate, kernel: Fn, key: str) -> Fn:
    provider = "core" if winner.provider == GENERIC else winner.provider
    name = "_".join(filter(None, (provider, winner.entry.variant)))
    found: Fn = library.overload(spec, name, kernel, key, _dotted(winner))
    return found


_warned: Final[set[tuple[str, str, str]]] = set()
for _registry in (_bound, _bound_for, _warned):
    on_reset(_registry.clear)


def _warn_of_fallback(case: OpCase, found: Resolution, settings: Settings) -> None:
    """One sentence for each reason why core's code runs an operator, or one of its phases."""
    if settings.fallback is not Fallback.WARN:
        return
    for value, reject in found.fallbacks.items():
        reason = str(reject)
        if (case.op, case.device, reason) in _warned:
            continue
        _warned.add((case.op, case.device, reason))
        _log.warning(
            "%s%s runs on core's portable torch code, which is slow: %s; "
            "VA_FALLBACK=error refuses it",
            case,
            "".join(f" at {name}={at}" for name, at in found.step(value).items()),
            reason,
        )


def _declare_default(spec: OpSpec) -> None:
    """`<op>.default`: one look-up by key, then the kernel itself."""
    table: dict[tuple[Any, ...], Fn] = {}
    generation = -1

    def winner(*args: Any) -> KernelCandidate:
        settings = Settings.from_environ()
        case = OpCase.of(spec.name, _device_of(args), spec.facts_of(*args))
        found = resolved(case, settings, direct=True)
        if found.refusal is not None:
            raise unsupported(case, found.refusal)
        _warn_of_fallback(case, found, settings)
        return found.winners[0]

    def direct(*args: Any) -> Any:
        nonlocal generation
        if generation != PROVIDERS.generation:
            table.clear()
            generation = PROVIDERS.generation
        key = spec.key_of(*args)
        kernel = table.get(key)
        if kernel is None:
            kernel = _kernel(spec, winner(*args))
            library.refuse_foreign()
            table[key] = kernel
        return kernel(*args)

    def fake(*args: Any) -> Any:
        winner(*args)
        return spec.fake(*args)

    library.define_default(spec, direct, fake)


def _device_of(args: Sequence[Any]) -> torch.device:
    return next(a.device for a in args if isinstance(a, torch.Tensor))


for _spec in SPECS.values():
    _declare_default(_spec)
