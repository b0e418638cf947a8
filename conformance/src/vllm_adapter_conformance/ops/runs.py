"""Running one sample of an operator on the bench, and judging what came back.

The arguments are drawn here and sent; results come back as bytes, with all memory behind the
arguments. Imports torch: rules import it inside their checks only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import torch

from vllm_adapter.engine.device_process.errors import RemoteError
from vllm_adapter.engine.device_process.held import as_tuple
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.spec import OpSpec
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.errors import UnsupportedCase, VllmAdapterError
from vllm_adapter_conformance.base.bench import Bench, BoundOperator, Kept
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.device_side.calls import WEIGHTS
from vllm_adapter_conformance.ops.cases import Facts
from vllm_adapter_conformance.ops.pattern import AXES, Pattern, describe
from vllm_adapter_conformance.ops.tolerance import ToleranceResult, budget_of, compare
from vllm_adapter_conformance.ops.trial import Expected, Sample
from vllm_adapter_conformance.ops.trials import TRIALS

AT_ONCE: Final = 32 << 20
"""Bytes that many runs may give in one answer."""


@dataclass
class DeviceCall:
    """The arguments of one call, as they are here and were sent, and what keeps them there.

    `bases` are the tensors whose views the arguments are: comparing them, and not the arguments
    alone, shows a write beside a view.
    """

    spec: OpSpec
    sample: Sample
    args: list[Any]
    bases: list[torch.Tensor]
    placed: Kept
    device: str
    """Where the results belong, as torch names it."""
    memory: Sequence[Sequence[int]] = ()
    """Where the memory of each base begins and ends there."""
    wanted: Sequence[Expected] | None = None
    """The reference, kept for the next time that this call is judged."""

    @property
    def mutated(self) -> list[torch.Tensor]:
        """The arguments that the operator writes in place, as they were sent."""
        return [self.args[i] for i in self.spec.mutates]

    @property
    def written(self) -> int:
        """Bytes of the results and of the arguments written in place."""
        return written_bytes(self.spec, self.args)


@dataclass(frozen=True)
class CallOutcome:
    """What a call gave: its results, the arguments that it wrote, all memory behind them.

    `kept` are the results where they are.
    """

    results: Sequence[Mapping[str, Any]]
    written: Sequence[torch.Tensor]
    bases: Sequence[torch.Tensor]
    kept: Kept

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The results that are tensors, on the host."""
        return _tensors(self.results)

    @property
    def addresses(self) -> list[int]:
        """Where they are on the device; 0 for those without memory."""
        return [int(result["address"]) for result in self.results if "tensor" in result]


def make_call(bench: Bench, spec: OpSpec, sample: Sample) -> DeviceCall:
    """The sample's arguments on the device, without a plan."""
    args, bases = drawn(sample)
    sent = bench.ask(
        "place", op=spec.name, bases=[*map(flat, bases)], arguments=views(args, bases)
    )
    placed, device = bench.kept(sent["number"]), str(sent["device"])
    return DeviceCall(spec, sample, args, bases, placed, device, sent["memory"])


def drawn(sample: Sample) -> tuple[list[Any], list[torch.Tensor]]:
    """The sample's arguments on the host, and the tensors whose views they are."""
    bases: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        """tensor: [...] -> [...], of its own memory."""
        bases.append(tensor.clone())
        return bases[-1]

    return list(sample.build(keep)), bases


def views(args: Sequence[Any], bases: Sequence[torch.Tensor]) -> list[Any]:
    """Arguments as `HeldDevice.do_place` takes them."""
    number = {base.untyped_storage()._cdata: i for i, base in enumerate(bases)}
    return [
        {
            "base": number[arg.untyped_storage()._cdata],
            "size": list(arg.shape),
            "stride": list(arg.stride()),
            "offset": arg.storage_offset(),
        }
        if isinstance(arg, torch.Tensor)
        else arg
        for arg in args
    ]


def flat(base: torch.Tensor) -> torch.Tensor:
    """base: [...] without gaps -> [elements], in the order of its memory."""
    return base.as_strided((base.numel(),), (1,), 0)


def bound_call(bench: Bench, binding: BoundOperator, op: str, sample: Sample) -> DeviceCall:
    """As `make_call`, at the binding's load and step moments: weights prepared, step planned."""
    call = make_call(bench, SPECS[op], sample)
    make_ready(bench, binding, call)
    return call


def make_ready(bench: Bench, binding: BoundOperator, call: DeviceCall) -> None:
    """The load and step moments of a call, once more where it was run before."""
    op = call.spec
    if op.name in WEIGHTS or op.operator.planned:
        bench.ask(
            "ready",
            call=call.placed.number,
            binding=binding.number,
            weight=WEIGHTS.get(op.name),
            step=step_of(call.sample) if op.operator.planned else None,
        )


def step_of(sample: Sample) -> dict[str, Any] | None:
    """The sample's step on the host, as `HeldDevice.step` takes it."""
    if sample.step is None:
        return None
    return fields_of(sample.step(torch.device("cpu")))


def fields_of(step: Step) -> dict[str, Any]:
    """A step on the host, as `HeldDevice.step` takes it."""
    return {field.name: getattr(step, field.name) for field in fields(step)}


def write(bench: Bench, call: DeviceCall, sample: Sample) -> None:
    """Gives a call the contents of another sample of the same layout, at the same addresses."""
    call.args, call.bases = drawn(sample)
    call.sample, call.wanted = sample, None
    bench.ask("write", call=call.placed.number, bases=[*map(flat, call.bases)])


def bind_declared(bench: Bench, op: str, facts: Facts) -> BoundOperator:
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
        ) from error


def run(
    bench: Bench, call: DeviceCall, function: Kept, facts: Facts, *, thread: bool = False
) -> CallOutcome:
    """Runs a call; a binding or a function of the device's process. `thread`: in a new thread.

    Raises:
        Failure: an exception.
    """
    with errors_fail(bench, call, facts):
        return run_raw(bench, call, function, thread=thread)


def run_raw(
    bench: Bench, call: DeviceCall, function: Kept, *, thread: bool = False
) -> CallOutcome:
    """As `run`; an error is raised as it was there."""
    seen = bench.ask("run", call=call.placed.number, function=function.number, thread=thread)
    return outcome_of(bench, seen)


def outcome_of(bench: Bench, seen: Mapping[str, Any]) -> CallOutcome:
    """What `HeldDevice.do_run` gave for one run."""
    (ran,) = seen["runs"]
    return CallOutcome(ran["results"], ran["written"], seen["bases"], bench.kept(seen["number"]))


@contextmanager
def errors_fail(bench: Bench, call: DeviceCall, facts: Facts) -> Iterator[None]:
    """An error of the call, raised inside, is a Failure."""
    try:
        yield
    except (VllmAdapterError, RemoteError) as error:
        raise _failure(bench, call, facts, "a result", error_text(error)) from error


def error_text(error: Exception) -> str:
    """The name of an error of the device's process, and its text."""
    name = error.name if isinstance(error, RemoteError) else type(error).__name__
    return f"{name}: {error}"


def repeated(bench: Bench, call: DeviceCall, function: Kept, times: int) -> Iterator[CallOutcome]:
    """Runs a call so many times from equal arguments; memory beside those is not looked at.

    Errors as they were raised there.
    """
    at_once = max(1, min(times, AT_ONCE // max(1, call.written)))
    while times > 0:
        seen = bench.ask(
            "run",
            call=call.placed.number,
            function=function.number,
            times=min(times, at_once),
            bases=False,
        )
        kept = bench.kept(seen["number"])
        if len(seen["runs"]) != min(times, at_once):
            raise Failure(f"{min(times, at_once)} runs", f"{len(seen['runs'])}")
        for ran in seen["runs"]:
            yield CallOutcome(ran["results"], ran["written"], [], kept)
        times -= at_once


def judge(
    bench: Bench, call: DeviceCall, function: Kept, facts: Facts, *, thread: bool = False
) -> float:
    """Runs a call and holds everything it gave or wrote against the float64 reference.

    Returns the largest share of the budget.

    Raises:
        Failure: an exception, a wrong result, dtype, shape or device, or a write to memory that
            is not the operator's to write, or a result in the memory of an argument.
    """
    return judge_outcome(bench, call, run(bench, call, function, facts, thread=thread), facts)


def judge_outcome(bench: Bench, call: DeviceCall, outcome: CallOutcome, facts: Facts) -> float:
    """As `judge`, of a call that has run."""
    worst = judge_results(bench, call, outcome, facts)
    _judge_memory(bench, call, outcome, facts)
    places = views(call.args, call.bases)
    for number, (now, held) in enumerate(zip(outcome.bases, call.bases, strict=True)):
        if now.shape != (held.numel(),):
            raise _failure(bench, call, facts, f"base tensor {number} back", f"{now.shape}")
        for position in call.spec.mutates:
            view = places[position]
            if view["base"] == number:
                mine = now.as_strided(view["size"], view["stride"], view["offset"])
                mine.copy_(call.args[position])
        if not same_bits(now, flat(held)):
            raise _failure(
                bench,
                call,
                facts,
                "no write outside the arguments that the schema marks as mutated",
                f"base tensor {number}, {tuple(held.shape)}, changed at {_change(now, held)}",
            )
    return worst


def _judge_memory(bench: Bench, call: DeviceCall, outcome: CallOutcome, facts: Facts) -> None:
    """Fails where a result is a part of an argument: whoever writes to one has written both."""
    for number, result in enumerate(outcome.results):
        if not (address := int(result.get("address") or 0)):
            continue
        end = address + result["tensor"].nbytes
        for base, (first, last) in enumerate(call.memory):
            if address < last and first < end:
                raise _failure(
                    bench,
                    call,
                    facts,
                    f"result {number} has memory of its own",
                    f"it lies in that of base tensor {base}, {tuple(call.bases[base].shape)}",
                )


def judge_results(bench: Bench, call: DeviceCall, outcome: CallOutcome, facts: Facts) -> float:
    """Compares results, then mutated arguments; as `judge`."""
    wanted = expected(call)
    found = [*outcome.results, *({"tensor": tensor} for tensor in outcome.written)]
    names = [f"result {i}" for i in range(len(outcome.results))]
    names += [f"argument {i}" for i in call.spec.mutates]
    if len(found) != len(wanted):
        count = len(wanted) - len(call.mutated)
        raise _failure(bench, call, facts, f"{count} results", f"{len(outcome.results)} results")
    worst = 0.0
    terms = call.sample.terms or TRIALS[call.spec.name].terms(facts)
    held: list[torch.Tensor | None] = [*[None] * len(outcome.results), *call.mutated]
    for name, got, want, before in zip(names, found, wanted, held, strict=True):
        tensor = _checked(bench, call, facts, name, got, want)
        seen = compare(tensor, want, terms)
        worst = max(worst, seen.share)
        if seen.share > 1:
            pattern = describe(
                tensor,
                want.value,
                budget_of(tensor.dtype, want, terms),
                axes=AXES.get(call.spec.name, ()),
                before=before,
                scale=want.magnitude,
            )
            sentence = f"{name} within its error budget"
            raise _failure(bench, call, facts, sentence, _worst(seen), seen.share, pattern)
    return worst


def expected(call: DeviceCall) -> Sequence[Expected]:
    """The float64 reference for a call."""
    if call.wanted is None:
        call.wanted = reference(call.spec, call.args)
    return call.wanted


def reference(spec: OpSpec, args: Sequence[Any]) -> Sequence[Expected]:
    """The float64 reference of a call with these arguments, which stay as they are."""
    trial = TRIALS[spec.name]
    upcast = [
        argument
        if number in trial.as_stored and number not in spec.mutates
        else _upcast(argument, stored=number in trial.as_stored)
        for number, argument in enumerate(args)
    ]
    wanted = list(trial.reference(*upcast))
    first_mutated = len(wanted) - len(spec.mutates)
    for position, argument in enumerate((args[i] for i in spec.mutates), first_mutated):
        # What is copied is judged as the dtype that holds it can hold it.
        want = wanted[position]
        stored = want.value.to(argument.dtype).double()
        wanted[position] = replace(want, value=torch.where(want.magnitude > 0, want.value, stored))
    return wanted


def written_bytes(spec: OpSpec, args: Sequence[Any]) -> int:
    """What a call with these arguments writes: its results, and arguments in place."""
    fake = spec.fake(*map(_meta, args))
    return sum(tensor.nbytes for tensor in [*as_tuple(fake), *(args[i] for i in spec.mutates)])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one shape and dtype and hold the same bytes; NaN is itself.

    one, other: [...] on the host, any layout.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def same_outcome(one: CallOutcome, other: CallOutcome) -> bool:
    """Whether two calls gave and wrote the same bytes in place."""
    written = one.written, other.written
    same = len(written[0]) == len(written[1]) and all(map(same_bits, *written))
    return same and same_results(one.results, other.results)


def same_results(some: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two calls' results hold the same bytes; what is no tensor is judged elsewhere."""
    mine, theirs = _tensors(some), _tensors(others)
    return len(mine) == len(theirs) and all(map(same_bits, mine, theirs))


def samples(spec: OpSpec, facts: Facts, bench: Bench) -> Sequence[Sample]:
    """The operator's samples for a case."""
    return TRIALS[spec.name].samples(facts, bench.target.seed)


def _tensors(results: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
    return [result["tensor"] for result in results if "tensor" in result]


def _checked(
    bench: Bench,
    call: DeviceCall,
    facts: Facts,
    name: str,
    got: Mapping[str, Any],
    want: Expected,
) -> torch.Tensor:
    """The tensor of a result, if it is of the right shape, dtype and device."""
    if "type" in got:
        raise _failure(bench, call, facts, f"{name} is a tensor", str(got["type"]))
    tensor: torch.Tensor | None = got.get("tensor")
    is_result = "result" in name
    shape, dtype, device = got.get("shape"), got.get("dtype"), got.get("device")
    if tensor is not None:
        shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    wanted: tuple[Any, ...] = (tuple(want.value.shape),)
    found: tuple[Any, ...] = (shape,)
    if is_result:
        wanted += (call.device, f"torch.{facts['dtype']}")
        found += (device, dtype)
    if found != wanted or tensor is None:
        raise _failure(bench, call, facts, f"{name} is {_kind(wanted)}", _kind(found))
    return tensor


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
    return f"{shown}; seed {bench.target.seed}; device {bench.where}"


def _upcast(argument: Any, *, stored: bool) -> Any:
    """A copy, since a reference may write into what it gets."""
    if not isinstance(argument, torch.Tensor):
        return argument
    if stored or not argument.is_floating_point():
        return argument.clone()
    return argument.to(torch.float64, copy=True)


def _meta(argument: Any) -> Any:
    return argument.to("meta") if isinstance(argument, torch.Tensor) else argument


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # A view of one element is contiguous to torch, whatever its stride, and has no bytes' view.
    return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _change(now: torch.Tensor, held: torch.Tensor) -> list[int]:
    """Index of the first element that changed.

    now: [elements], held: [...], of one memory layout; the index has one number a dimension.
    """
    there = now.as_strided(held.shape, held.stride())
    size = held.element_size()
    first = int((_bytes(there) != _bytes(held)).long().argmax()) // size
    return [int(i) for i in torch.unravel_index(torch.tensor(first), held.shape)]
