"""L2: calling an operator many times keeps no memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import base_cases, declared, large_facts

GOAL_BYTES: Final = 16 << 20
"""The calls of one case write about so much: more than the noise of a process."""
MAX_CALLS: Final = 2000
MIN_CALLS: Final = 30
WINDOWS: Final = 3
WINDOW_CALLS: Final = 200
SLOPES: Final = {"Python objects": 1, "bytes of malloc": 24, "bytes on the device": 1}
"""What each call of each window must keep, to be a leak: what is kept once is none."""


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op)[:1]:
            yield Case(op, {"op": op, "facts": large_facts(declared(target), base)}, base.pointer)


@rule(
    "L2.leak",
    summary="many calls of an operator do not grow memory",
    why="A server calls each operator millions of times: a kernel that keeps its result, a plan "
    "that keeps the last step's, or an allocation without its free ends as out of memory after "
    "hours. Counted are the device's own figure where the framework keeps one, live tensors of "
    "the process, and what it holds; then, over three windows of equal calls, every object and "
    "byte that is allocated: what grows in each of them by a little a call ends the same way, "
    "later. Usual causes are a cache keyed by tensor, and a list that keeps temporaries alive for "
    "an asynchronous launch.",
    cases=_cases,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """Measures after a warm-up and again after calls that write `GOAL_BYTES`; then windows."""
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.device_side.memory import allocated_by_windows, usage_around
    from vllm_adapter_conformance.ops import runs

    op, facts = case.params["op"], dict(case.params["facts"])
    spec = SPECS[op]
    binding = runs.bind_declared(bench, op, facts)
    samples = runs.samples(spec, facts, bench)
    written = {s.name: runs.written_bytes(spec, runs.drawn(s)[0]) for s in samples}
    sample = max(samples, key=lambda s: written[s.name])
    call = runs.bound_call(bench, binding, op, sample)
    each = written[sample.name]
    calls = min(MAX_CALLS, max(MIN_CALLS, math.ceil(GOAL_BYTES / max(1, each))))
    before, after = bench.observe(
        usage_around,
        call=call.placed.number,
        binding=binding.number,
        step=runs.step_of(sample),
        first=max(MIN_CALLS, calls // 4),
        calls=calls,
    )
    where = f"sample {sample.name!r} writes {each} bytes a call; seed {bench.target.seed}"
    _judge_growth(op, calls, each, before, after, where)
    small = min(samples, key=lambda s: written[s.name] or math.inf)
    call = runs.bound_call(bench, binding, op, small)
    seen = bench.observe(
        allocated_by_windows,
        call=call.placed.number,
        binding=binding.number,
        step=runs.step_of(small),
        first=MIN_CALLS,
        calls=WINDOW_CALLS,
        windows=WINDOWS,
    )
    _judge_slope(op, seen, f"sample {small.name!r}; seed {bench.target.seed}")
    return Observation(note=f"{calls} calls; counted: {', '.join(after)}")


def _judge_growth(
    op: str, calls: int, each: int, before: dict[str, int], after: dict[str, int], where: str
) -> None:
    """Fails where about as much is held as the calls have written."""
    kept = calls * each
    for what, limit in (
        ("live tensors", calls // 2),
        ("bytes of live tensors", kept // 2),
        ("bytes on the device", kept // 2),
        ("bytes of the process", max(kept // 2, GOAL_BYTES // 4)),
    ):
        growth = after.get(what, 0) - before.get(what, 0)
        if growth > limit:
            raise Failure(
                f"{calls} calls of {op} to keep no memory", f"{growth} more {what}", detail=where
            )


def _judge_slope(op: str, seen: list[dict[str, int]], where: str) -> None:
    """Fails where every one of several windows of calls keeps a little for each call."""
    for what, least in SLOPES.items():
        counts = [found[what] for found in seen if what in found]
        grown = [now - before for before, now in itertools.pairwise(counts)]
        if len(grown) == WINDOWS and min(grown) >= least * WINDOW_CALLS:
            raise Failure(
                f"{WINDOW_CALLS} calls of {op} to keep nothing, after so many others",
                f"{min(grown)} more {what} in each of {WINDOWS} windows",
                detail=where,
            )
