"""L2: calling an operator many times keeps no memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import base_cases, declared, large_facts
from vllm_adapter_conformance.rules._memory import allocated_by_process, held_by_process

if TYPE_CHECKING:
    from vllm_adapter.engine.ops.bind import Binding
    from vllm_adapter_conformance.ops.runs import DeviceCall
    from vllm_adapter_conformance.ops.trial import Sample

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
    """Measures after a warm-up and again after calls that write `GOAL_BYTES`."""
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops import runs

    op, facts = case.params["op"], dict(case.params["facts"])
    binding = runs.bind_declared(bench, op, facts)
    samples = runs.samples(SPECS[op], facts, bench)
    sample = max(samples, key=lambda s: runs.make_call(bench, SPECS[op], s).written)
    call = runs.bound_call(bench, binding, sample)
    calls = min(MAX_CALLS, max(MIN_CALLS, math.ceil(GOAL_BYTES / max(1, call.written))))
    # What is there now is not looked at again: with torch loaded that takes longer than the calls.
    gc.freeze()
    try:
        _repeat(bench, binding, call, max(MIN_CALLS, calls // 4))
        before = _usage(bench)
        _repeat(bench, binding, call, calls)
        after = _usage(bench)
        _judge_growth(op, call, calls, before, after, bench.target.seed)
        _slope(bench, binding, min(samples, key=lambda s: _least(bench, op, s)), op)
    finally:
        gc.unfreeze()
    return Observation(note=f"{calls} calls; counted: {', '.join(after)}")


def _judge_growth(
    op: str, call: DeviceCall, calls: int, before: dict[str, int], after: dict[str, int], seed: int
) -> None:
    """Fails where about as much is held as the calls have written."""
    kept = calls * call.written
    for what, limit in (
        ("live tensors", calls // 2),
        ("bytes of live tensors", kept // 2),
        ("bytes on the device", kept // 2),
        ("bytes of the process", max(kept // 2, GOAL_BYTES // 4)),
    ):
        growth = after.get(what, 0) - before.get(what, 0)
        if growth > limit:
            raise Failure(
                f"{calls} calls of {op} to keep no memory",
                f"{growth} more {what}",
                detail=f"sample {call.sample.name!r} writes {call.written} bytes a call; "
                f"seed {seed}",
            )


def _least(bench: Bench, op: str, sample: Sample) -> float:
    """What a call of a sample writes; a sample that writes nothing comes last."""
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops import runs

    return runs.make_call(bench, SPECS[op], sample).written or math.inf


def _slope(bench: Bench, binding: Binding, sample: Sample, op: str) -> None:
    """Fails where every one of several windows of calls keeps a little for each call."""
    from vllm_adapter_conformance.ops import runs

    call = runs.bound_call(bench, binding, sample)
    _repeat(bench, binding, call, MIN_CALLS)
    kept: dict[str, list[int]] = {}
    before = _allocated(bench)
    for _ in range(WINDOWS):
        _repeat(bench, binding, call, WINDOW_CALLS)
        now = _allocated(bench)
        for what in now:
            kept.setdefault(what, []).append(now[what] - before[what])
        before = now
    for what, grown in kept.items():
        if min(grown) >= SLOPES[what] * WINDOW_CALLS:
            raise Failure(
                f"{WINDOW_CALLS} calls of {op} to keep nothing, after so many others",
                f"{min(grown)} more {what} in each of {WINDOWS} windows",
                detail=f"sample {sample.name!r}; seed {bench.target.seed}",
            )


def _allocated(bench: Bench) -> dict[str, int]:
    """To the byte, by every count that there is."""
    found = allocated_by_process()
    stats = bench.runtime.memory_stats(bench.opened.record.index)
    if stats.source == "framework":
        found["bytes on the device"] = stats.allocated_bytes
    return found


def _repeat(bench: Bench, binding: Binding, call: DeviceCall, calls: int) -> None:
    """Plans and runs as a server does: once a step."""
    step = call.sample.step(bench.device) if call.sample.step else None
    for _ in range(calls):
        if step is not None:
            binding.plan(step)
        binding.run(*call.args)
    bench.runtime.synchronize_stream(bench.opened.record.index)


def _usage(bench: Bench) -> dict[str, int]:
    """What is held now, by every measure that this machine and device have."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    gc.collect()
    # By type: isinstance asks an object for its class, which some answer with a warning.
    live = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    # What torch.compile traces with has a shape and no memory, and may outlive its graph.
    live = [t for t in live if not issubclass(type(t), FakeTensor)]
    found = {"live tensors": len(live), "bytes of live tensors": sum(t.nbytes for t in live)}
    stats = bench.runtime.memory_stats(bench.opened.record.index)
    if stats.source == "framework":
        found["bytes on the device"] = stats.allocated_bytes
    found["bytes of the process"] = held_by_process()
    return found
