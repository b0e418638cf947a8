"""L2: what is written to the paged KV cache is what attention reads, over steps and reuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import (
    Facts,
    OpFacts,
    base_cases,
    declared,
    refusal,
    variations,
)

if TYPE_CHECKING:
    import torch

KV_HEADS: Final = 2


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for dtype in DTYPES if target.capability else ():
        yield _case(target, dtype)


def _case(target: Target, dtype: str) -> Case | NotDeclaredCase:
    """The first base case of attention whose cache can be written too; or why there is none."""
    capability = declared(target)
    served = [
        base
        for base in base_cases(capability, "paged_attention")
        if base.facts["dtype"] == dtype and base.facts["kv_dtype"] == "auto"
    ]
    first = next(c for c in variations(capability, "paged_attention") if c.facts["dtype"] == dtype)
    refusals = [first.refusal]
    for base in served:
        write = _write_facts(base.facts)
        refusals.append(refusal(capability, "reshape_and_cache", write))
        if refusals[-1] is None:
            return Case(dtype, {"attend": base.facts, "write": write}, base.pointer)
    missing = next(r for r in refusals if r)
    return NotDeclaredCase(dtype, missing.pointer, str(missing))


def _write_facts(attend: Facts) -> Facts:
    names = OPERATORS["reshape_and_cache"].bind_facts
    return {name: attend[name] for name in ("dtype", *names)}


@rule(
    "L2.kv_cache",
    summary="reshape_and_cache, then paged_attention, equals attention without a cache",
    why="Each operator may be right alone and both wrong together: keys stored as values, a slot "
    "computed with another block size, a block that still holds a finished sequence. In serving "
    "this mixes the contexts of users. The failure names the step and the sequence; a fault that "
    "starts with the step after the release is a stale block, one in the first step is layout.",
    cases=_cases,
    needs=("L2.reshape_and_cache.correct", "L2.paged_attention.correct"),
)
def check(bench: Bench, case: Case) -> Observation:
    """Prefill, decode, release, reuse of the blocks by another sequence, mixed steps."""
    from vllm_adapter_conformance.device_side.paged import rounds
    from vllm_adapter_conformance.ops import runs

    attend, write = dict(case.params["attend"]), dict(case.params["write"])
    runs.bind_declared(bench, "reshape_and_cache", write)
    runs.bind_declared(bench, "paged_attention", attend)
    block = int(attend["block_size"])
    first, second, third = range(3)
    plan: list[tuple[str, dict[int, int], list[int]]] = [
        ("prefill", {first: block + 3, second: 2}, []),
        ("decode", {first: 1, second: 1}, []),
        ("reuse of released blocks, beside a decode", {third: block + 5, second: 1}, [first]),
        ("decode after reuse", {third: 1, second: 1}, []),
        ("chunk of a prefill over a block's end", {second: block, third: 1}, []),
    ]
    steps = _drawn(bench, attend, plan)
    seen = bench.observe(
        rounds, attend=attend, write=write, kv_heads=KV_HEADS, blocks=4, steps=steps
    )
    worst = 0.0
    history: dict[int, list[torch.Tensor]] = {}
    for number, (step, got) in enumerate(zip(steps, seen, strict=True)):
        where = f"step {number} ({plan[number][0]})"
        worst = max(worst, _judge_step(bench, attend, where, step, got, history))
    return Observation(worst, f"{len(steps)} steps")


def _drawn(
    bench: Bench, attend: Facts, plan: list[tuple[str, dict[int, int], list[int]]]
) -> list[dict[str, Any]]:
    """Each step as `device_side.paged.rounds` takes it, with random tokens."""
    import torch

    from vllm_adapter_conformance.ops.draw import RandomTensors

    draw = RandomTensors(bench.target.seed, "kv_cache")
    dtype, size = getattr(torch, str(attend["dtype"])), int(attend["head_size"])
    heads, steps = KV_HEADS * int(attend["gqa_ratio"]), []
    for _, tokens, ends in plan:
        total = sum(tokens.values())
        query = draw.normal(total, heads, size, dtype=dtype)
        key, value = draw.normal(2, total, KV_HEADS, size, dtype=dtype)
        steps.append({"tokens": tokens, "ends": ends, "query": query, "key": key, "value": value})
    return steps


def _judge_step(
    bench: Bench,
    attend: Facts,
    where: str,
    step: dict[str, Any],
    got: torch.Tensor,
    history: dict[int, list[torch.Tensor]],
) -> float:
    """Holds each sequence's rows against attention over its history in one long block."""
    import torch

    if got.shape != step["query"].shape:
        raise Failure(f"{tuple(step['query'].shape)} in {where}", f"{tuple(got.shape)}")
    pair, start, worst = torch.stack((step["key"], step["value"])), 0, 0.0
    for number, count in step["tokens"].items():
        rows = slice(start, start + count)
        start += count
        history.setdefault(number, []).append(pair[:, rows])
        past = torch.cat(history[number], 1)
        share = _judge(bench, attend, where, number, got[rows], step["query"][rows], past)
        worst = max(worst, share)
    return worst


def _judge(
    bench: Bench, attend: Facts, where: str, number: int, got: Any, query: Any, past: Any
) -> float:
    import torch

    from vllm_adapter_conformance.ops.tolerance import compare
    from vllm_adapter_conformance.ops.trials import TRIALS

    trial = TRIALS["paged_attention"]
    lengths = (torch.tensor([past.shape[1]]), torch.tensor([0, query.shape[0]]))
    (want,) = trial.reference(
        query.double(),
        *past.double()[:, None],
        torch.zeros(1, 1, dtype=torch.int32),
        *lengths,
        int(attend["head_size"]) ** -0.5,
        int(attend["window"]),
        float(attend["soft_cap"]),
        0,
    )
    seen = compare(got, want, trial.terms(attend))
    if seen.share > 1:
        raise Failure(
            f"sequence {number} in {where} to equal attention without a cache",
            f"{seen.share:.3g} of the budget at {list(seen.index)}: got {seen.got:.9g}, "
            f"want {seen.want:.9g}",
            share=seen.share,
            detail=f"{OpFacts('paged_attention', attend, None).id}; seed {bench.target.seed}",
        )
    return seen.share
