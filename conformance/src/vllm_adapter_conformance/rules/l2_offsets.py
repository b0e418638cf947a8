"""L2: what lies behind 2^31 elements of a table or a cache is read and written where it lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import (
    Facts,
    OpFacts,
    base_cases,
    declared,
    large_facts,
    refusal,
)

if TYPE_CHECKING:
    import torch

OPS: Final = ("embedding", "reshape_and_cache", "paged_attention")
"""Operators that look up rows of something large, and touch no more than those."""
BEHIND: Final = 2**31
KV_HEADS: Final = 2
CONTEXT_BLOCKS: Final = 3
WIDTHS: Final = (2047, 2040, 2032, 2016, 1984)
"""Of 11 bits without a power of two, or with as small a one as is declared."""


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPS if target.capability else ():
        # An element of two bytes where there is one: half the memory.
        bases = sorted(
            base_cases(declared(target), op), key=lambda b: b.facts["dtype"] == "float32"
        )
        for base in bases[:1]:
            facts = _odd_width(target, base, large_facts(declared(target), base))
            yield Case(f"{op}-{base.facts['dtype']}", {"op": op, "facts": facts}, base.pointer)


def _odd_width(target: Target, base: OpFacts, facts: Facts) -> Facts:
    """With a width that makes offsets which float32 cannot hold, where one is declared."""
    able = (facts | {"hidden": width} for width in WIDTHS if "hidden" in facts)
    return next((f for f in able if refusal(declared(target), base.op, f) is None), facts)


@rule(
    "L2.offsets",
    summary="elements behind 2^31 of a table or a cache are read and written where they lie",
    why="A KV cache of 8 GB a layer has more elements than 32 bits with a sign can count, and so "
    "has the vocabulary of a large model. An offset that is computed in 32 bits reads another "
    "sequence's keys, or writes into them, as soon as the pool is full enough. Compute offsets in "
    "64 bits: block number times stride is the product that overflows, and float32 is exact to "
    "2^24 alone. Only a few rows are touched: a device that gives memory when it is touched gives "
    "little. Where a device has not the memory, the case says so and nothing is claimed.",
    cases=_cases,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """The first and last rows, and those beside the boundary."""

    from vllm_adapter_conformance.device_side.offsets import look_behind
    from vllm_adapter_conformance.ops.draw import RandomTensors, torch_dtype

    op, facts = case.params["op"], dict(case.params["facts"])
    draw, dtype = RandomTensors(bench.target.seed, "offsets", op), torch_dtype(facts)
    unit = _unit(op, facts)
    beyond = -(-BEHIND // unit)
    places = [0, 1, beyond - 1, beyond, beyond + 1]
    shape = (
        [int(facts["hidden"])]
        if op == "embedding"
        else [int(facts["block_size"]), KV_HEADS, int(facts["head_size"])]
    )
    count = 1 if op == "embedding" else 2
    rows = draw.quick(count, len(places), *shape, dtype=dtype)
    given: dict[str, Any] = {"op": op, "facts": facts, "places": places, "rows": rows}
    if op == "paged_attention":
        heads = KV_HEADS * int(facts["gqa_ratio"])
        given["blocks"] = CONTEXT_BLOCKS
        given["query"] = draw.quick(1, heads, int(facts["head_size"]), dtype=dtype)
    if op == "reshape_and_cache":
        given["new"] = draw.quick(2, 2, *shape[1:], dtype=dtype)
        given["slots"] = _slots(places, int(facts["block_size"]))
    found = bench.observe(look_behind, **given)
    if isinstance(found, str):
        return Observation(note=f"not visited: {found}")
    wanted = _wanted(facts, given)
    terms = max(int(facts.get("head_size", 1)), CONTEXT_BLOCKS * int(facts.get("block_size", 1)))
    return Observation(_worst(op, facts, found, wanted, terms, bench.target.seed), "visited")


def _unit(op: str, facts: Facts) -> int:
    """Elements of one row of a table, or of one block of a cache."""
    if op == "embedding":
        return int(facts["hidden"])
    return int(facts["block_size"]) * KV_HEADS * int(facts["head_size"])


def _wanted(facts: Facts, given: dict[str, Any]) -> Sequence[Any]:
    """The reference, over the few rows that there are."""
    import torch

    from vllm_adapter_conformance.ops.trials import TRIALS

    op, rows = given["op"], given["rows"]
    reference, places = TRIALS[op].reference, range(len(given["places"]))
    if op == "embedding":
        return reference(torch.tensor(places), rows[0])
    if op == "reshape_and_cache":
        slots = _slots(places, int(facts["block_size"]))
        return reference(*given["new"], rows[0].clone(), rows[1].clone(), slots)
    context = CONTEXT_BLOCKS * int(facts["block_size"])
    return reference(
        given["query"].double(),
        rows[0],
        rows[1],
        torch.tensor([[*places][-CONTEXT_BLOCKS:]], dtype=torch.int32),
        torch.tensor([context], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        int(facts["head_size"]) ** -0.5,
        int(facts["window"]),
        float(facts["soft_cap"]),
        0,
    )


def _slots(places: Sequence[int], block: int) -> torch.Tensor:
    """int64[2]: slots in the last block, and in the first behind the boundary."""
    import torch

    return torch.tensor([places[-1] * block + block - 1, places[-2] * block])


def _worst(
    op: str, facts: Facts, found: Sequence[Any], wanted: Sequence[Any], terms: int, seed: int
) -> float:
    from vllm_adapter_conformance.ops.tolerance import compare

    worst = 0.0
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        seen = compare(got, want, terms)
        worst = max(worst, seen.share)
        if seen.share > 1:
            raise Failure(
                f"{op} to read and write behind {BEHIND} elements as before them",
                f"{seen.share:.3g} of the budget at {list(seen.index)} of result {number}: "
                f"got {seen.got:.9g}, want {seen.want:.9g}",
                share=seen.share,
                detail=f"{facts}; seed {seed}",
            )
    return worst
