"""Attention, with and without a paged cache."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F

from vllm_adapter.engine.ops.generic.stored import as_bytes, read_rows

if TYPE_CHECKING:
    from vllm_adapter.engine.ops.step import Step

VECTOR_BYTES: Final = 16
QUERIES: Final = 512
"""Where a mask is needed, so many queries of a sequence are attended at a time: the mask, and the
scores where they are bounded, are of this many rows however long the prompt is."""
Lengths = tuple[tuple[int, ...], tuple[int, ...]]
"""New tokens and context of each sequence, on the host."""

Gather = tuple[torch.Tensor, torch.Tensor, int]
"""Slots of each sequence, aligned at its end; which of them are its own; the shortest context."""


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> torch.Tensor:
    """query[T, H, D], key and value[T, KH, D] -> [T, H, D]; each sequence sees itself alone.

    query_start_loc int32[B + 1] is read on the host. A window counts both sides where attention
    is not causal.
    """
    out = torch.empty_like(query)
    for start, stop in itertools.pairwise(query_start_loc.tolist()):
        if start < stop:
            rows = slice(start, stop)
            out[rows] = _attend(
                query[rows], key[rows], value[rows], scale, causal, window, soft_cap
            )
    return out


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
    state: Lengths | None,
) -> torch.Tensor:
    """Causal attention of query[T, H, D] over caches[blocks, block, KH, D], a sequence at a time.

    Slots that no query of the sequence sees take no part: what lies before all windows or past
    the end may be NaN. `state` holds the lengths on the host (`plan_paged_attention`); without it
    they are read from the device, which waits for it.
    """
    if state is None:
        starts = query_start_loc.tolist()
        contexts = seq_lens.tolist()
        queries = [stop - start for start, stop in itertools.pairwise(starts)]
    else:
        queries, contexts = list(state[0]), list(state[1])
    block_size = key_cache.shape[1]
    out = torch.empty_like(query)
    start = 0
    for i, (length, context) in enumerate(zip(queries, contexts, strict=True)):
        rows = slice(start, start + length)
        start += length
        if not length:
            continue
        # The first query's window begins before all others'.
        first = max(0, context - length - window + 1) if window else 0
        begin = first // block_size
        blocks = block_table[i, begin : -(-context // block_size)]
        seen = slice(first - begin * block_size, context - begin * block_size)
        keys, values = (
            read_rows(as_bytes(cache)[blocks].flatten(0, 1)[seen], cache.dtype, query.dtype)
            for cache in (key_cache, value_cache)
        )
        out[rows] = _attend(query[rows], keys, values, scale, True, window, soft_cap)
    return out


def plan_paged_attention(step: Step, state: Lengths | None) -> Lengths:
    """Keeps a step's lengths on the host, so that `paged_attention` need not ask the device."""
    return step.query_lens, step.context_lens


def paged_decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    state: Gather,
) -> torch.Tensor:
    """`paged_attention` where each sequence has one new token: all of them at once.

    query: [batch, heads, head_size] -> [batch, heads, head_size]. Caches:
    [blocks, block_size, kv_heads, head_size]; window in tokens.

    Every sequence is padded to the longest context (or the window, if that is shorter), by the
    slots that `plan_paged_decode` lists once a step: few launches and no wait for the device, at
    the price of reading the padding.
    """
    slots, own, shortest = state
    if window:
        slots, own = slots[:, -window:], own[:, -window:]
    mask = None if shortest >= slots.shape[1] else own[:, None, None]
    # The query heads of one KV head stand in for several queries at one position.
    result = _softmax_of_scores(
        query.reshape(query.shape[0], key_cache.shape[2], -1, query.shape[2]),
        read_rows(_rows(as_bytes(key_cache), slots), key_cache.dtype, query.dtype).transpose(1, 2),
        read_rows(_rows(as_bytes(value_cache), slots), value_cache.dtype, query.dtype).transpose(
            1, 2
        ),
        mask,
        scale,
        soft_cap,
    )
    return result.flatten(1, 2)


def plan_paged_decode(step: Step, state: Gather | None) -> Gather:
    """Slots int64[B, longest context] of every sequence, its last token in the last column.

    Before its beginning a sequence repeats its first token, which is then in any window that
    reaches so far: other slots may hold NaN, which a mask of the scores would let through.
    """
    longest = max(step.context_lens)
    offset = torch.arange(-longest, 0, device=step.seq_lens.device)
    place = step.seq_lens[:, None] + offset
    held = place.clamp(min=0)
    blocks = step.block_table.gather(1, held // step.block_size).long()
    slots = blocks * step.block_size + held % step.block_size
    return slots, place >= 0, min(step.context_lens)


def _rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """cache[blocks, block, KH, D] at slots[B, L] -> [B, L, KH, D]."""
    block_size = cache.shape[1]
    if cache.stride(0) == block_size * cache.stride(1):
        flat = cache.view(-1, *cache.shape[2:]).index_select(0, slots.flatten())
        return flat.view(*slots.shape, *cache.shape[2:])
    return cache[slots // block_size, slots % block_size]


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> torch.Tensor:
    """query[Q, H, D], at the end of keys and values[C, KH, D] -> [Q, H, D]."""
    length, context = query.shape[0], keys.shape[0]
    is_square = length == context
    mask = None
    is_masked = window or (causal and length > 1 and (soft_cap or not is_square))
    if is_masked and causal and length > QUERIES:
        out = torch.empty_like(query)
        for begin in range(0, length, QUERIES):
            rows = query[begin : begin + QUERIES]
            last = context - length + begin + rows.shape[0]
            first = max(0, last - rows.shape[0] - window + 1) if window else 0
            seen = slice(first, last)
            out[begin : begin + QUERIES] = _attend(
                rows, keys[seen], values[seen], scale, causal, window, soft_cap
            )
        return out
    if is_masked:
        places = torch.arange(context, device=query.device)
        before = places[context - length :, None] - places
        mask = before >= 0 if causal else torch.ones_like(before, dtype=torch.bool)
        if window:
            mask = mask & (before.abs() < window)
    result = _softmax_of_scores(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        mask,
        scale,
        soft_cap,
        is_causal=causal and length > 1 and mask is None,
    )
    return result[0].transpose(0, 1)


def _softmax_of_scores(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    soft_cap: float,
    *,
    is_causal: bool = False,
) -> torch.Tensor:
    """query[B, H, Q, D], keys and values[B, KH, C, D], mask broadcast to [B, 1, Q, C]."""
    if not soft_cap:
        # Fused kernels take the largest score before the scale: a negative one would overflow.
        return F.scaled_dot_product_attention(
            _aligned(-query if scale < 0 else query),
            _aligned(keys),
            _aligned(values),
            attn_mask=mask,
            is_causal=is_causal,
            scale=abs(scale),
            enable_gqa=query.shape[1] != keys.shape[1],
        )
    # torch's own attention cannot bound the scores.
    ratio = query.shape[1] // keys.shape[1]
    keys, values = (t.repeat_interleave(ratio, dim=1).float() for t in (keys, values))
    scores = query.float() @ keys.transpose(2, 3) * scale
    scores = soft_cap * torch.tanh(scores / soft_cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ values).to(query.dtype)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied if its data or its rows do not begin at multiples of 16 bytes.

    torch's fused attention reads so many at once, and does not ask where a view begins; rows that
    are no whole multiple it pads, which is a copy.
    """
    width = tensor.element_size()
    misplaced = tensor.storage_offset() * width % VECTOR_BYTES
    if not misplaced and tensor.shape[-1] * width % VECTOR_BYTES == 0:
        misplaced = any(stride * width % VECTOR_BYTES for stride in tensor.stride()[:-1])
    return tensor.clone(memory_format=torch.contiguous_format) if misplaced else tensor
