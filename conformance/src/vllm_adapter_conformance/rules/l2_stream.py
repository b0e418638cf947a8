"""L2: an operator's work is in the order of the stream that is current."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import Facts, base_cases, declared
from vllm_adapter_conformance.rules import l2_repeat
from vllm_adapter_conformance.rules.l1_stream import has_streams

if TYPE_CHECKING:
    import torch

ROUNDS: Final = 24
BULK: Final = 16 << 20
"""So many copies of so many bytes are queued first: work out of order is done before their end."""


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op)[:1]:
            if has_streams(target):
                yield Case(op, {"op": op, "facts": base.facts}, base.pointer)
            else:
                yield NotDeclaredCase(op, "/identity/torch_type", "the CPU has no streams")


@rule(
    "L2.streams",
    summary="an operator runs in the order of the current stream, and is done when that is",
    why="Servers run a step on a stream of their own, and copy its inputs in on the same one. A "
    "kernel that is launched on the default stream, or on one that it keeps, reads inputs before "
    "they are there, and its result is read before it is written: tokens of another step, now and "
    "then. Ask for the current stream at each call, and never keep it.",
    cases=_cases,
    needs=("L1.copy.round_trip", "L1.stream.wait"),
    seconds=120.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """Inputs change at the end of a long queue; the call and the wait are of that stream alone."""
    op, facts = case.params["op"], dict(case.params["facts"])
    samples = l2_repeat.inputs(bench, op, facts, l2_repeat.SMALL)
    early, late = (l2_repeat.plain_data(op, sample) for sample in samples)
    outputs = bench.observe(call_on_stream, op=op, facts=facts, early=early, late=late)
    where = "what was queued behind a long copy on a stream of its own, call {}"
    seen = [[(outputs, [0])]]
    return Observation(l2_repeat.judge(bench, op, facts, samples[1:], seen, where))


def call_on_stream(
    bench: Bench, op: str, facts: Facts, early: l2_repeat.Given, late: l2_repeat.Given
) -> list[torch.Tensor]:
    """Queues a long copy, `late`'s inputs over `early`'s, and the call; waits for that stream."""
    import torch

    index = bench.opened.record.index
    ready, other = (l2_repeat.Ready(bench, op, facts, given) for given in (early, late))
    # Of a planned operator the step is `late`'s from the beginning: plans are made once a step.
    ready.step = other.step
    ready.call(0)
    mine, fresh = ([a for a in r.args if isinstance(a, torch.Tensor)] for r in (ready, other))
    if ready.step is not None:
        ready.binding.plan(ready.step)
    long, bulk = (bench.to_device(torch.zeros(BULK, dtype=torch.uint8)) for _ in range(2))
    stream: Any = bench.runtime.create_stream(index)
    bench.runtime.synchronize_stream(index)
    with _current(bench, stream):
        for _ in range(ROUNDS):
            long.copy_(bulk)
        for now, then in zip(mine, fresh, strict=True):
            now.copy_(then)
        result = ready.binding.run(*ready.args)
        bench.runtime.synchronize_stream(index, stream)
    results = () if result is None else result if isinstance(result, tuple) else (result,)
    return [output.detach().cpu().clone() for output in (*results, *ready.mutated)]


def _current(bench: Bench, stream: Any) -> AbstractContextManager[Any]:
    """The stream as the current one, by the runtime's own means or torch's."""
    streams = getattr(bench.runtime, "streams", None)
    found: AbstractContextManager[Any] = stream if streams is None else streams.using(stream)
    return found
