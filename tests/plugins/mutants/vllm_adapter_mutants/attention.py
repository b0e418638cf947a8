"""Paged attention with one fault each. `_attend` without options is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from vllm_adapter import generic

Kept = dict[int, torch.Tensor]


def last_key_dropped(*args: Any) -> torch.Tensor:
    """Off by one: a token does not see itself."""
    return _attend(*args, see=lambda query, key: (key < query) | (query == 0))


def not_causal(*args: Any) -> torch.Tensor:
    """A token sees those behind it."""
    return _attend(*args, see=lambda query, key: key >= 0)


def heads_by_modulo(*args: Any) -> torch.Tensor:
    """Query head h takes KV head h % kv_heads, where it is h // ratio."""
    return _attend(*args, share=lambda cache, ratio: cache.repeat(1, ratio, 1))


def reads_unused_slots(*args: Any) -> torch.Tensor:
    """Whole blocks, with weight zero where nothing is stored: zero times NaN is NaN."""
    return _attend(*args, whole_blocks=True)


def neighbour_block(*args: Any) -> torch.Tensor:
    """The second block of a sequence is taken to lie behind the first."""
    return _attend(*args, blocks_of=lambda row: [row[0] + i for i in range(len(row))])


def stale_blocks(*args: Any) -> torch.Tensor:
    """Keeps what a full block held when it was first read, for whoever owns the block next."""
    *given, (lengths, kept) = args
    return _attend(*given, lengths, kept=kept)


def plan_stale_blocks(step: Any, state: Any) -> Any:
    """The lengths of this step, and the blocks that were read in earlier ones."""
    return generic.plan_paged_attention(step, None), state[1] if state else {}


def plan_once(step: Any, state: Any) -> Any:
    """The lengths of the first step, for ever."""
    return state or generic.plan_paged_attention(step, None)


def window_ignored(*args: Any) -> torch.Tensor:
    """Is declared for a window, and serves none."""
    *given, _window, soft_cap, state = args
    return generic.paged_attention(*given, 0, soft_cap, state)


def reads_before_the_window(*args: Any) -> torch.Tensor:
    """What lies before the window gets weight zero, and is read: zero times NaN is NaN."""
    *given, window, soft_cap, state = args

    def see(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = key <= query
        return seen & (query - key < window) if window else seen

    return _attend(*given, 0, soft_cap, state, see=see)


def _attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    state: Any,
    *,
    see: Callable[..., torch.Tensor] = lambda query, key: key <= query,
    share: Callable[..., torch.Tensor] = lambda cache, ratio: cache.repeat_interleave(ratio, 1),
    blocks_of: Callable[[list[int]], Iterable[int]] = list,
    whole_blocks: bool = False,
    kept: Kept | None = None,
    floor: float = -torch.inf,
) -> torch.Tensor:
    if window or soft_cap:
        raise RuntimeError("neither a window nor a soft cap")
    out = torch.empty_like(query)
    block = key_cache.shape[1]
    ratio = query.shape[1] // key_cache.shape[2]
    for row, context, (start, stop) in zip(
        block_table.tolist(),
        seq_lens.tolist(),
        itertools.pairwise(query_start_loc.tolist()),
        strict=True,
    ):
        blocks = list(blocks_of(row[: -(-context // block)]))
        stop_at = len(blocks) * block if whole_blocks else context
        pair = [
            share(_gather(cache, blocks, context, kept)[:stop_at], ratio).transpose(0, 1).float()
            for cache in (key_cache, value_cache)
        ]
        place = torch.arange(stop_at)
        seen = see(torch.arange(context - (stop - start), context)[:, None], place)
        seen = seen & (place < context)
        scores = query[start:stop].transpose(0, 1).float() @ pair[0].transpose(1, 2) * scale
        scores = scores.masked_fill(~seen, -torch.inf)
        parts = (scores - scores.amax(-1, keepdim=True).clamp(min=floor)).exp()
        weights = parts / parts.sum(-1, keepdim=True)
        out[start:stop] = (weights @ pair[1]).transpose(0, 1).to(query.dtype)
    return out


def _gather(
    cache: torch.Tensor, blocks: list[int], context: int, kept: Kept | None
) -> torch.Tensor:
    taken = [cache[block % len(cache)] for block in blocks]
    for number, block in enumerate(blocks if kept is not None else ()):
        if (number + 1) * cache.shape[1] <= context:
            key = hash((cache.data_ptr(), block))
            taken[number] = kept.setdefault(key, taken[number].clone())
    return torch.cat(taken) if taken else cache[:0].flatten(0, 1)
