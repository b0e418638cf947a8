"""L2: an operator's work is in the order of the stream that is current."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import base_cases, declared
from vllm_adapter_conformance.rules import l2_repeat
from vllm_adapter_conformance.rules._streams import has_streams

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
    from vllm_adapter_conformance.device_side.repeat import call_on_stream
    from vllm_adapter_conformance.ops.calls import plain_call

    op, facts = case.params["op"], dict(case.params["facts"])
    samples = l2_repeat.inputs(bench, op, facts, l2_repeat.SMALL)
    early, late = (plain_call(op, facts, sample) for sample in samples)
    outputs = bench.observe(call_on_stream, early=early, late=late, rounds=ROUNDS, size=BULK)
    where = "what was queued behind a long copy on a stream of its own, call {}"
    seen = [[(outputs, [0])]]
    return Observation(l2_repeat.judge(bench, op, facts, samples[1:], seen, where))
