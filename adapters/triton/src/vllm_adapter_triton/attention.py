"""Paged attention for decode, prefill and mixed batches: entry points for descriptors."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from vllm_adapter import tuned
from vllm_adapter_triton.attention_plan import (
    GROUP_FIELDS,
    ITEM_FIELDS,
    AttentionWork,
    Tiling,
    plan,
)
from vllm_adapter_triton.launch import compute_units, next_power_of_2, to_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_adapter import Step

LEAST_ROWS: Final = 16
"""Of a tile: the fewest that a tensor core takes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How one kind of tile is run. `rows`: of a tile, where the group does not need more."""

    rows: int
    slots: int
    warps: int
    stages: int
    least: int = 64
    waves: int = 16
    """Programs for each compute unit, over a step's whole life."""


@dataclass(slots=True)
class _Launch:
    """One launch of the kernel over the tiles of one kind, and its memory on the device."""

    choice: Choice
    rows: int
    items: torch.Tensor
    groups: torch.Tensor
    result: torch.Tensor
    peak: torch.Tensor
    total: torch.Tensor
    has_groups: bool = True


@dataclass(slots=True)
class AttentionState:
    """What one binding keeps between steps.

    Heads and window are known from the first call on; `plan_paged_attention` fills the work of
    later steps, at the same addresses for an equal number of sequences, so that a captured
    graph reads the new step.
    """

    query_lens: tuple[int, ...] = ()
    context_lens: tuple[int, ...] = ()
    heads: tuple[int, int, int, int, torch.dtype] | None = None
    """KV heads, group, head size, window, dtype."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    launches: list[_Launch] = field(default_factory=list)
    kept: dict[tuple[Any, ...], _Launch] = field(default_factory=dict)
    """Memory by kind and number of tiles."""
    is_ready: bool = False


def choice_for(
    device: torch.device, dtype: torch.dtype, head_size: int, group: int, *, is_long: bool
) -> Choice:
    """What was measured for the device, or else the default: tiles of a prefill (`is_long`) or
    of single tokens. Lengths take no part: a captured graph serves all of them.
    """
    default = default_choice(dtype, head_size, is_long=is_long)
    sizes = {"head_size": head_size, "gqa_ratio": group, "prefill": int(is_long)}
    found = tuned("paged_attention", device, dtype, sizes)
    known = {name: int(size) for name, size in found.items() if name in Choice.__slots__}
    return replace(default, **known)


def default_choice(dtype: torch.dtype, head_size: int, *, is_long: bool) -> Choice:
    """The choice for tiles of a prefill (`is_long`) or of single tokens, where none is known."""
    wide = head_size > 128
    if is_long:
        # A split of a long tile writes and reads far more than one of single tokens.
        if dtype is torch.float32:
            return Choice(32, 32, 4, 1, least=1024, waves=2)
        return Choice(64, 32 if wide else 64, 4, 2, least=1024, waves=2)
    if dtype is torch.float32:
        return Choice(16, 32, 4, 2, waves=4)
    return Choice(16, 32 if wide else 64, 2, 3, waves=4)


def plan_paged_attention(step: Step, state: AttentionState | None) -> AttentionState:
    """Cuts the step into work for `paged_attention`; `state` is the last step's."""
    state = state or AttentionState()
    state.query_lens, state.context_lens = step.query_lens, step.context_lens
    state.device, state.is_ready = step.seq_lens.device, False
    if state.heads is not None:
        _prepare(state)
    return state


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    state: AttentionState | None,
) -> torch.Tensor:
    """Causal attention of query[T, H, D] over caches[blocks, block, KH, D] -> [T, H, D].

    Slots that no query of a sequence sees are not read. Without a plan the lengths are read from
    the device, which waits for it.
    """
    if state is None:
        starts, contexts = query_start_loc.tolist(), seq_lens.tolist()
        lengths = tuple(stop - start for start, stop in itertools.pairwise(starts))
        state = AttentionState(lengths, tuple(contexts), device=query.device)
    kv_heads, head_size = key_cache.shape[2:]
    heads = kv_heads, query.shape[1] // kv_heads, head_size, window, query.dtype
    if not state.is_ready or state.heads != heads:
        state.heads = heads
        _prepare(state)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for launch in state.launches:
        _run(launch, state, query, key_cache, value_cache, block_table, out, scale, soft_cap)
    return out


def _prepare(state: AttentionState) -> None:
    """Plans both kinds of tiles, and brings the work to the device."""
    assert state.heads is not None
    _, group, head_size, _, dtype = state.heads
    device = state.device
    lengths = np.asarray(state.query_lens)
    short = choice_for(device, dtype, head_size, group, is_long=False)
    long = choice_for(device, dtype, head_size, group, is_long=True)
    short_tokens = max(1, max(LEAST_ROWS, short.rows) // group)
    state.launches = [
        _planned(state, indices, choice)
        for indices, choice in (
            (np.flatnonzero((lengths > 0) & (lengths <= short_tokens)), short),
            (np.flatnonzero(lengths > short_tokens), long),
        )
        if len(indices)
    ]
    state.is_ready = True


def _planned(state: AttentionState, indices: NDArray[np.int64], choice: Choice) -> _Launch:
    assert state.heads is not None
    kv_heads, group, head_size, window, _ = state.heads
    rows = max(choice.rows, LEAST_ROWS, next_power_of_2(group))
    tiling = Tiling(
        tokens=rows // group,
        slots=choice.slots,
        least=max(choice.least, choice.slots),
        programs=compute_units(state.device) * choice.waves,
    )
    work = plan(state.query_lens, state.context_lens, indices, kv_heads, window, tiling)
    tiles = len(work.groups)
    key = choice, rows, tiles, len(work.items), kv_heads, head_size
    launch = state.kept.get(key)
    if launch is None:
        launch = state.kept[key] = _memory(work, rows, state, choice)
    to_device(work.items, launch.items)
    to_device(work.groups, launch.groups)
    return launch


def _memory(work: AttentionWork, rows: int, state: AttentionState, choice: Choice) -> _Launch:
    """Room for a launch's work, and for as many partial results as any such step has."""
    assert state.heads is not None
    kv_heads, _, head_size, _, _ = state.heads
    device, partials = state.device, len(work.items)

    def room(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Gives dtype[*shape] on the device, unwritten."""
        return torch.empty(shape, dtype=dtype, device=device)

    return _Launch(
        choice,
        rows,
        items=room(partials, ITEM_FIELDS, dtype=torch.int32),
        groups=room(len(work.groups), GROUP_FIELDS, dtype=torch.int32),
        result=room(partials, kv_heads, rows, head_size),
        peak=room(partials, kv_heads, rows),
        total=room(partials, kv_heads, rows),
    )


def _run(
    launch: _Launch,
    state: AttentionState,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    soft_cap: float,
) -> None:
    """Writes out[T, H, D] at the tokens of a launch's tiles."""
    from vllm_adapter_triton.kernels import attention as kernels

    assert state.heads is not None
    kv_heads, group, head_size, window, dtype = state.heads
    padded = max(16, next_power_of_2(head_size))
    kernels.attend[(kv_heads, launch.items.shape[0])](
        query, key_cache, value_cache, block_table, out,
        launch.items, launch.result, launch.peak, launch.total,
        scale, soft_cap if soft_cap else 1.0, window,
        *query.stride(), *key_cache.stride(), *value_cache.stride(),
        block_table.stride(0), out.stride(0), out.stride(1), kv_heads,
        GROUP=group, HEAD=head_size, HEAD_PADDED=padded,
        BLOCK=key_cache.shape[1], TILE_M=launch.rows, TILE_N=launch.choice.slots,
        HAS_CAP=bool(soft_cap), HAS_WINDOW=bool(window),
        PRECISION="ieee" if dtype is torch.float32 else "tf32",
        FIELDS=ITEM_FIELDS, num_warps=launch.choice.warps, num_stages=launch.choice.stages,
    )  # fmt: skip
    kernels.combine[(launch.rows // group * group, kv_heads, launch.groups.shape[0])](
        out, launch.groups, launch.result, launch.peak, launch.total,
        out.stride(0), out.stride(1), kv_heads,
        GROUP=group, HEAD=head_size, HEAD_PADDED=padded,
        TILE_M=launch.rows, PARTS=16, FIELDS=GROUP_FIELDS, num_warps=2,
    )  # fmt: skip
