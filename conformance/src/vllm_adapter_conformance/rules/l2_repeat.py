"""L2: what holds once holds each time: thousands of calls, and calls from two threads at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import Facts, base_cases, declared, large_facts

if TYPE_CHECKING:
    import torch

    from vllm_adapter_conformance.ops.trial import Expected, Sample

CALLS: Final = 2000
"""Calls of one operator in a row: what is wrong once in a thousand is met twice."""
CALLS_OF_A_THREAD: Final = 200
SMALL: Final[Mapping[str, Any]] = {"rows": (2,), "tokens": 2, "queries": 3, "batch": 2}
WIDE: Final[Mapping[str, Any]] = {
    "rows": (65,),
    "tokens": 65,
    "queries": 33,
    "batch": 3,
    "context": "two blocks and one",
}
"""Work that takes long enough for another thread to come between."""

Seen = list[tuple[list["torch.Tensor"], list[int]]]
"""Unlike results of one input, each with the numbers of the calls that gave it.

A number below zero is of a result that was read once more after the last call: -1 is call 0's.
"""


def _many(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op)[:1]:
            yield Case(op, {"op": op, "facts": base.facts}, base.pointer)


def _threaded(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op)[:1]:
            facts = large_facts(declared(target), base)
            yield Case(op, {"op": op, "facts": facts}, base.pointer)


@rule(
    "L2.many_calls",
    summary=f"each of {CALLS} calls in a row is right",
    why="A server calls each operator millions of times. A result that is wrong once in a "
    "thousand calls is a wrong token in every answer, and no test of a few calls shows it. Two "
    "inputs take turns, and every result is held against the reference: a descriptor that says "
    "`not deterministic` is allowed rounding and nothing else. Usual causes are a race between "
    "launches, a counter or a ring of buffers that wraps around, and memory that is read before "
    "it is written.",
    cases=_many,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check_many(bench: Bench, case: Case) -> Observation:
    """Two inputs of a small case, in turn."""
    from vllm_adapter_conformance.device_side.repeat import call_in_turn
    from vllm_adapter_conformance.ops.calls import plain_call

    op, facts = case.params["op"], dict(case.params["facts"])
    samples = inputs(bench, op, facts, SMALL)
    given = [plain_call(op, facts, sample) for sample in samples]
    seen = bench.observe(call_in_turn, inputs=given, calls=CALLS)
    share = judge(bench, op, facts, samples, seen, "call {} of " + str(CALLS))
    return Observation(share, f"{CALLS} calls")


@rule(
    "L2.threads",
    summary="calls from two threads at once give what each gives alone",
    why="A server loads, samples and answers on several threads, and torch lets go of Python's "
    "lock in every operator. Scratch memory that all threads share, or a global that holds what "
    "belongs to one call, mixes two requests: each gets a part of the other's numbers. Keep "
    "scratch in the call, or one of it for each thread or stream.",
    cases=_threaded,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check_threads(bench: Bench, case: Case) -> Observation:
    """Two threads with an input each, of equal shapes."""
    from vllm_adapter_conformance.device_side.repeat import call_at_once
    from vllm_adapter_conformance.ops.calls import plain_call

    op, facts = case.params["op"], dict(case.params["facts"])
    samples = inputs(bench, op, facts, WIDE)
    given = [plain_call(op, facts, sample) for sample in samples]
    seen = bench.observe(call_at_once, inputs=given, calls=CALLS_OF_A_THREAD)
    share = judge(bench, op, facts, samples, seen, "call {} of one of two threads")
    return Observation(share, f"2 threads, {CALLS_OF_A_THREAD} calls each")


def inputs(bench: Bench, op: str, facts: Facts, shape: Mapping[str, Any]) -> list[Sample]:
    """Two samples of equal shapes, and other contents."""
    from vllm_adapter_conformance.ops.calls import sized
    from vllm_adapter_conformance.ops.dimensions import SAMPLED

    # Steps of equal shapes for any kernel: that of decode does not take a prefill.
    mixed = {"phase": "mixed"} if "batch" in SAMPLED[op] else {}
    seed = f"{bench.target.seed}/repeat"
    return [sized(op, facts, {**shape, **mixed}, seed, contents) for contents in (0, 1)]


def judge(
    bench: Bench, op: str, facts: Facts, samples: list[Sample], seen: list[Seen], where: str
) -> float:
    """Holds every unlike result against the reference; the largest share of the budget."""
    capability, worst = declared(bench.target), 0.0
    for sample, results in zip(samples, seen, strict=True):
        detail = f"sample {sample.name!r}; {facts}; seed {bench.target.seed}"
        wanted = _wanted(op, facts, sample)
        for outputs, calls in results:
            when = _told(where, calls[0])
            worst = max(worst, _share(op, facts, sample, outputs, wanted, when, detail))
        if len(results) > 1 and capability.numerics.deterministic is not False:
            raise Failure(
                f"{op}: equal bits from equal input",
                f"{_told(where, results[1][1][0])} differs from call 0",
                detail=detail,
            )
    return worst


def _wanted(op: str, facts: Facts, sample: Sample) -> list[tuple[torch.dtype, Expected]]:
    """The reference of each result, then of each argument that is written, with its dtype."""
    import torch

    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops.trials import TRIALS

    spec, trial, args = SPECS[op], TRIALS[op], sample.build(torch.Tensor.clone)
    upcast = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]
    for number in trial.as_stored:
        upcast[number] = args[number]
    wanted = list(trial.reference(*upcast))
    dtypes = [getattr(torch, str(facts["dtype"]))] * (len(wanted) - len(spec.mutates))
    dtypes += [args[number].dtype for number in spec.mutates]
    found = []
    for dtype, want in zip(dtypes, wanted, strict=True):
        # What is copied is judged as the dtype that holds it can hold it.
        stored = torch.where(want.magnitude > 0, want.value, want.value.to(dtype).double())
        found.append((dtype, replace(want, value=stored)))
    return found


def _share(
    op: str,
    facts: Facts,
    sample: Sample,
    outputs: Sequence[torch.Tensor],
    wanted: Sequence[tuple[torch.dtype, Expected]],
    when: str,
    detail: str,
) -> float:
    from vllm_adapter_conformance.ops.tolerance import compare
    from vllm_adapter_conformance.ops.trials import TRIALS

    if len(outputs) != len(wanted):
        raise Failure(f"{op}: {len(wanted)} outputs, in {when}", str(len(outputs)), detail=detail)
    worst, terms = 0.0, sample.terms or TRIALS[op].terms(facts)
    for number, (got, (dtype, want)) in enumerate(zip(outputs, wanted, strict=True)):
        if (got.dtype, got.shape) != (dtype, want.value.shape):
            raise Failure(
                f"{op}: output {number} is {dtype} {tuple(want.value.shape)}, in {when}",
                f"{got.dtype} {tuple(got.shape)}",
                detail=detail,
            )
        seen = compare(got, want, terms)
        worst = max(worst, seen.share)
        if seen.share > 1:
            raise Failure(
                f"{op}: output {number} within its error budget, in {when}",
                f"{seen.share:.3g} of the budget at {list(seen.index)}: got {seen.got:.9g}, "
                f"want {seen.want:.9g}",
                share=seen.share,
                detail=detail,
            )
    return worst


def _told(where: str, number: int) -> str:
    text = where.format(number if number >= 0 else ~number)
    return text if number >= 0 else f"what {text} gave, read after the last call,"
