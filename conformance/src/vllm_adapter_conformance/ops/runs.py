"""Running one sample of an operator on the bench, and judging what came back.

Imports torch: rules import it inside their checks only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.bind import Binding
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.spec import OpSpec
from vllm_adapter.errors import UnsupportedCase, VllmAdapterError
from vllm_adapter.settings import PREFIX
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.ops.cases import Facts
from vllm_adapter_conformance.ops.pattern import AXES, Pattern, describe
from vllm_adapter_conformance.ops.tolerance import ToleranceResult, budget_of, compare
from vllm_adapter_conformance.ops.trial import Expected, Sample
from vllm_adapter_conformance.ops.trials import TRIALS

Fn = Callable[..., Any]

WEIGHTS: Final[Mapping[str, int]] = {"linear": 1}
"""Which argument of an operator `prepare_weights` may change."""
REFUSED: Final = "refused"
"""The cause of a case that nothing ran."""


@dataclass
class DeviceCall:
    """The arguments of one call on the device, and all memory behind them.

    `bases` are the tensors whose views the arguments are: comparing them, and not the arguments
    alone, shows a write beside a view.
    """

    spec: OpSpec
    sample: Sample
    args: list[Any]
    bases: list[torch.Tensor]
    weight: Any = None
    """The weight as it was before `prepare_weights`, which may keep it."""
    wanted: tuple[Sample, Sequence[Expected]] | None = None
    """The reference of a sample, kept for the next time that this call is judged."""

    @property
    def mutated(self) -> list[torch.Tensor]:
        """The arguments that the operator writes in place."""
        return [self.args[i] for i in self.spec.mutates]

    @property
    def written(self) -> int:
        """Bytes of the results and of the arguments written in place."""
        fake = self.spec.fake(*(_meta(argument) for argument in self.args))
        return sum(tensor.nbytes for tensor in [*as_tuple(fake), *self.mutated])

    @property
    def device(self) -> torch.device:
        """Where the results belong."""
        return next(a.device for a in self.args if isinstance(a, torch.Tensor))


def make_call(bench: Bench, spec: OpSpec, sample: Sample) -> DeviceCall:
    """The sample's arguments on the device, without a plan."""
    bases: list[torch.Tensor] = []

    def to_device(tensor: torch.Tensor) -> torch.Tensor:
        """tensor: [...] on the host -> [...] on the device, of its own memory."""
        bases.append(bench.to_device(tensor))
        return bases[-1]

    return DeviceCall(spec, sample, list(sample.build(to_device)), bases)


def bound_call(bench: Bench, binding: Binding, sample: Sample) -> DeviceCall:
    """As `make_call`, at the binding's load and step moments: weights prepared, step planned."""
    call = make_call(bench, SPECS[binding.case.op], sample)
    make_ready(bench, binding, call)
    return call


def make_ready(bench: Bench, binding: Binding, call: DeviceCall) -> None:
    """The load and step moments of a call, once more where it was run before."""
    if call.spec.name in WEIGHTS:
        at = WEIGHTS[call.spec.name]
        call.weight = call.args[at] if call.weight is None else call.weight
        call.args[at] = binding.prepare_weights(call.weight)
    if call.spec.operator.planned:
        assert call.sample.step is not None
        binding.plan(call.sample.step(bench.device))
        call.args[-1] = binding.handle


def bind_declared(bench: Bench, op: str, facts: Facts) -> Binding:
    """The binding of a case that the descriptor declares.

    Raises:
        Failure: the case is refused, or its winner cannot be imported.
    """
    try:
        return bench.bind(op, facts)
    except VllmAdapterError as error:
        kind = "a refusal" if isinstance(error, UnsupportedCase) else "an error"
        raise Failure(
            f"{op} bound for a case that the descriptor declares",
            f"{kind}: {error.message}",
            detail=_where(facts, bench),
            cause=REFUSED,
        ) from error


def judge(bench: Bench, call: DeviceCall, run: Fn, facts: Facts) -> float:
    """Runs a call and holds everything it gave or wrote against the float64 reference.

    Returns the largest share of the budget.

    Raises:
        Failure: an exception, a wrong result, dtype, shape or device, or a write to memory that
            is not the operator's to write.
    """
    before = [base.clone() for base in call.bases]
    writable = [argument.clone() for argument in call.mutated]
    try:
        results = as_tuple(run(*call.args))
    except Exception as error:
        raise _failure(bench, call, facts, "a result", f"{type(error).__name__}: {error}") from (
            error
        )
    worst = judge_results(bench, call, results, facts, writable)
    for argument, held in zip(call.mutated, writable, strict=True):
        argument.copy_(held)
    for number, (base, held) in enumerate(zip(call.bases, before, strict=True)):
        if not same_bits(base, held):
            raise _failure(
                bench,
                call,
                facts,
                "no write outside the arguments that the schema marks as mutated",
                f"base tensor {number}, {tuple(base.shape)}, changed at {_change(base, held)}",
            )
    return worst


def judge_results(
    bench: Bench,
    call: DeviceCall,
    results: Sequence[Any],
    facts: Facts,
    before: Sequence[torch.Tensor] = (),
) -> float:
    """Compares results, then mutated arguments, which held `before`; as `judge`."""
    wanted = expected(call)
    found = [*results, *call.mutated]
    names = [f"result {i}" for i in range(len(results))]
    names += [f"argument {i}" for i in call.spec.mutates]
    if len(found) != len(wanted):
        count = len(wanted) - len(call.mutated)
        raise _failure(bench, call, facts, f"{count} results", f"{len(results)} results")
    worst = 0.0
    terms = call.sample.terms or TRIALS[call.spec.name].terms(facts)
    held: list[torch.Tensor | None] = [None] * len(results)
    held += before or [None] * len(call.mutated)
    for name, got, want, was in zip(names, found, wanted, held, strict=True):
        _check_kind(bench, call, facts, name, got, want)
        seen = compare(got, want, terms)
        worst = max(worst, seen.share)
        if seen.share > 1:
            budget = budget_of(got.dtype, want, terms)
            pattern = describe(
                got,
                want.value,
                budget,
                axes=AXES.get(call.spec.name, ()),
                before=was,
                scale=want.magnitude,
            )
            sentence = f"{name} within its error budget"
            raise _failure(bench, call, facts, sentence, _worst(seen), seen.share, pattern)
    return worst


def expected(call: DeviceCall) -> Sequence[Expected]:
    """The float64 reference for a call, from fresh host copies of the sample."""
    if call.wanted is None or call.wanted[0] is not call.sample:
        call.wanted = call.sample, _expected(call)
    return call.wanted[1]


def _expected(call: DeviceCall) -> Sequence[Expected]:
    spec, trial = call.spec, TRIALS[call.spec.name]
    upcast = [
        argument if number in trial.as_stored else _upcast(argument)
        for number, argument in enumerate(call.sample.build(torch.Tensor.clone))
    ]
    wanted = list(trial.reference(*upcast))
    first_mutated = len(wanted) - len(spec.mutates)
    for position, argument in enumerate(call.mutated, first_mutated):
        # What is copied is judged as the dtype that holds it can hold it.
        want = wanted[position]
        stored = want.value.to(argument.dtype).double()
        wanted[position] = replace(want, value=torch.where(want.magnitude > 0, want.value, stored))
    return wanted


def as_tuple(result: Any) -> tuple[Any, ...]:
    """What an operator returned, as a tuple of results."""
    if result is None:
        return ()
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bytes; NaN is itself.

    one, other: [...], any layout.
    """
    return bool((_bytes(one) == _bytes(other)).all())


@contextlib.contextmanager
def strict_policy() -> Iterator[None]:
    """The environment of the default overloads: policy `error`, and no override."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    os.environ["VA_FALLBACK"] = "error"
    os.environ.pop("VA_OPS", None)
    try:
        yield
    finally:
        for name in ("VA_FALLBACK", "VA_OPS"):
            os.environ.pop(name, None)
            if name in kept:
                os.environ[name] = kept[name]


def samples(spec: OpSpec, facts: Facts, bench: Bench) -> Sequence[Sample]:
    """The operator's samples for a case."""
    return TRIALS[spec.name].samples(facts, bench.target.seed)


def _check_kind(
    bench: Bench, call: DeviceCall, facts: Facts, name: str, got: Any, want: Expected
) -> None:
    if not isinstance(got, torch.Tensor):
        raise _failure(bench, call, facts, f"{name} is a tensor", f"{type(got).__name__}")
    dtype = getattr(torch, str(facts["dtype"]))
    wanted = (tuple(want.value.shape), call.device) + ((dtype,) if "result" in name else ())
    found = (tuple(got.shape), got.device) + ((got.dtype,) if "result" in name else ())
    if found != wanted:
        raise _failure(bench, call, facts, f"{name} is {_kind(wanted)}", _kind(found))


def _kind(parts: tuple[Any, ...]) -> str:
    return ", ".join(map(str, parts))


def _worst(seen: ToleranceResult) -> str:
    at = list(seen.index)
    return f"{seen.share:.3g} of the budget at {at}: got {seen.got:.9g}, want {seen.want:.9g}"


def _failure(
    bench: Bench,
    call: DeviceCall,
    facts: Facts,
    want: str,
    seen: str,
    share: float | None = None,
    pattern: Pattern | None = None,
) -> Failure:
    detail = f"sample {call.sample.name!r}; {_where(facts, bench)}"
    expected, cause = f"{call.spec.name}: {want}", ""
    if pattern is not None:
        detail, cause = f"pattern   {'; '.join(pattern.sentences)}\n{detail}", pattern.cause
    return Failure(expected, seen, share=share, detail=detail, cause=cause)


def _where(facts: Facts, bench: Bench) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in facts.items())
    return f"{shown}; seed {bench.target.seed}; device {bench.device}"


def _upcast(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.double() if argument.is_floating_point() else argument.clone()


def _meta(argument: Any) -> Any:
    return argument.to("meta") if isinstance(argument, torch.Tensor) else argument


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def _change(now: torch.Tensor, held: torch.Tensor) -> list[int]:
    """Index of the first element that changed.

    now, held: [...], one shape and dtype; the index has one number a dimension.
    """
    size = now.element_size()
    first = int((_bytes(now) != _bytes(held)).long().argmax()) // size
    return [int(i) for i in torch.unravel_index(torch.tensor(first), now.shape)]
