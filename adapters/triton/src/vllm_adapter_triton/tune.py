"""What the launches of these kernels leave to choose, for `vllm-adapter tune`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_adapter import TuneCase, make_step, tuned
from vllm_adapter_triton.attention import (
    LEAST_ROWS,
    default_choice,
    paged_attention,
    plan_paged_attention,
)
from vllm_adapter_triton.launch import next_power_of_2

if TYPE_CHECKING:
    from vllm_adapter import Capability

HEADS: Final = ((64, 1), (64, 4), (128, 1), (128, 4), (128, 8))
"""Head size, and query heads that share a KV head."""
BLOCK: Final = 16
STEPS: Final[Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    0: ((1,) * 16, (4096,) * 12 + (512,) * 4),
    1: ((1024,) * 2, (1024,) * 2),
}
"""Queries and contexts of a step of single tokens, and of one of prompts."""
THREADS: Final = 1024
"""Of a work-group, on every device that Triton compiles for."""
_SLOTS: Final = (32, 64, 128)
_SUBGROUPS: Final = (2, 4, 8)
_STAGES: Final = (1, 2, 3, 4)
_WAVES: Final = {0: (2, 4, 8), 1: (1, 2)}


def tune_paged_attention(
    device: torch.device, dtype: torch.dtype, capability: Capability
) -> Iterator[TuneCase]:
    """A step of single tokens and one of prompts, for some heads."""
    for (head_size, group), prefill in itertools.product(HEADS, STEPS):
        queries, contexts = STEPS[prefill]
        yield TuneCase(
            operator="paged_attention",
            dtype=dtype,
            sizes={"head_size": head_size, "gqa_ratio": group, "prefill": prefill},
            choices=[*choices(capability, dtype, head_size, group, prefill)],
            run=_call(device, dtype, head_size, group, queries, contexts),
        )


def choices(
    capability: Capability, dtype: torch.dtype, head_size: int, group: int, prefill: int
) -> Iterator[dict[str, int]]:
    """What fits the chip: tiles in its shared memory, and a work-group of its subgroups.

    Triton's `num_warps` counts subgroups of the chip, whatever their size; where the descriptor
    says neither size, only the compiler knows what is too much, and a choice that it refuses is
    left out.
    """
    execution = capability.execution
    default = default_choice(dtype, head_size, is_long=bool(prefill))
    rows = max(default.rows, LEAST_ROWS, next_power_of_2(group))
    for slots, warps, stages in itertools.product(_SLOTS, _SUBGROUPS, _STAGES):
        if execution.subgroup_size and warps * execution.subgroup_size > THREADS:
            continue
        if execution.shared_memory_bytes is not None:
            needed = shared_bytes(rows, slots, stages, head_size, dtype)
            if needed > execution.shared_memory_bytes:
                continue
        for waves in _WAVES[prefill]:
            yield {"slots": slots, "warps": warps, "stages": stages, "waves": waves}


def shared_bytes(rows: int, slots: int, stages: int, head_size: int, dtype: torch.dtype) -> int:
    """About what a tile takes: its queries, and keys and values for each stage."""
    width = next_power_of_2(head_size) * dtype.itemsize
    return width * (rows + 2 * slots * stages)


def _call(
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    group: int,
    queries: tuple[int, ...],
    contexts: tuple[int, ...],
) -> Any:
    kv_heads = 8
    counts = [-(-context // BLOCK) for context in contexts]
    ends = [*itertools.accumulate(counts)]
    order = torch.randperm(ends[-1], generator=torch.Generator().manual_seed(1)).tolist()
    table = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    step = make_step(queries, contexts, table, BLOCK, device)
    keys, values = (
        torch.randn(ends[-1], BLOCK, kv_heads, head_size, dtype=dtype, device=device)
        for _ in range(2)
    )
    query = torch.randn(sum(queries), kv_heads * group, head_size, dtype=dtype, device=device)
    states: dict[tuple[Any, ...], Any] = {}

    def run() -> torch.Tensor:
        # A choice is taken when a step is planned, and not at each call.
        key = tuple(sorted(tried(device, dtype, head_size, group, queries).items()))
        if key not in states:
            states[key] = plan_paged_attention(step, None)
        return paged_attention(
            query, keys, values, step.block_table, step.seq_lens, step.query_start_loc,
            head_size**-0.5, 0, 0.0, states[key],
        )  # fmt: skip

    return run


def tried(
    device: torch.device, dtype: torch.dtype, head_size: int, group: int, queries: tuple[int, ...]
) -> Mapping[str, Any]:
    """The choice that is asked for at this moment."""
    sizes = {"head_size": head_size, "gqa_ratio": group, "prefill": int(max(queries) > 1)}
    return tuned("paged_attention", device, dtype, sizes)
