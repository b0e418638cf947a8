"""Portable torch implementations, for any device: the provider `torch`.

They are public: a descriptor may name one as its `run` (`vllm_adapter.engine.ops.generic:linear`)
where a chip has nothing better, and by that declares it as its own.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from vllm_adapter.errors import UnsupportedCase

if TYPE_CHECKING:
    from vllm_adapter.engine.ops.step import Step

Lengths = tuple[tuple[int, ...], tuple[int, ...]]
"""New tokens and context of each sequence, on the host."""

Gather = tuple[torch.Tensor, torch.Tensor | None]
"""Slots to read for each sequence, and which of them count (None: all)."""

__all__ = [
    "fused_add_rms_norm",
    "linear",
    "paged_attention",
    "paged_decode",
    "plan_paged_attention",
    "plan_paged_decode",
    "reshape_and_cache",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
]


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """x[..., in], weight[out, in], bias[out] -> [..., out]."""
    return F.linear(x, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[..., hidden], weight[hidden] -> [..., hidden]; computed in float32."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), both [..., hidden]."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x[..., 2 d] -> silu(x[..., :d]) * x[..., d:]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """Rotates query[T, H, D] and key[T, KH, D] in place, halves style (NeoX), whole heads.

    positions is int64[T]; cos_sin_cache[positions, D] holds cos, then sin.

    Raises:
        UnsupportedCase: neighbours (GPT-J), or only a part of each head.
    """
    if interleaved or cos_sin_cache.shape[-1] != query.shape[-1]:
        raise _not_served("rotary_embedding", "interleaved or partial rotation")
    cos, sin = cos_sin_cache[positions].float().unsqueeze(1).chunk(2, dim=-1)
    for heads in (query, key):
        first, second = heads.float().chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        heads.copy_(turned)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Writes key and value[T, KH, D] to the slots of caches[blocks, block, KH, D].

    A slot below 0 is padding. Shapes do not depend on how many there are, so that this traces:
    a padding row repeats the first real row, which writes the same bytes twice; with no real
    row, slot 0 is written with what it holds.
    """
    if slot_mapping.numel() == 0:
        return
    real = slot_mapping >= 0
    first = real.long().argmax()
    row = torch.where(real, torch.arange(real.numel(), device=real.device), first)
    slot = slot_mapping[row].clamp(min=0)
    block, place = slot // key_cache.shape[1], slot % key_cache.shape[1]
    any_real = real.any()
    for new, cache in ((key, key_cache), (value, value_cache)):
        rows = torch.where(any_real, new[row].to(cache.dtype), cache[block, place])
        cache[block, place] = rows


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

    `state` holds the lengths on the host (`plan_paged_attention`); without it they are read from
    the device, which waits for it.

    Raises:
        UnsupportedCase: a window or a soft cap.
    """
    if window or soft_cap:
        raise _not_served("paged_attention", "a window or a soft cap")
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
        blocks = block_table[i, : -(-context // block_size)]
        keys = key_cache[blocks].flatten(0, 1)[:context]
        values = value_cache[blocks].flatten(0, 1)[:context]
        out[rows] = _causal(query[rows], keys, values, scale)
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

    Every sequence is padded to the longest context, by the slots that `plan_paged_decode` lists
    once a step: few launches and no wait for the device, at the price of reading the padding.

    Raises:
        UnsupportedCase: a window or a soft cap.
    """
    if window or soft_cap:
        raise _not_served("paged_attention", "a window or a soft cap")
    slots, mask = state

    def gather(cache: torch.Tensor) -> torch.Tensor:
        return _rows(cache, slots).transpose(1, 2)

    # The query heads of one KV head stand in for several queries at one position.
    result = F.scaled_dot_product_attention(
        query.reshape(query.shape[0], key_cache.shape[2], -1, query.shape[2]),
        gather(key_cache),
        gather(value_cache),
        attn_mask=mask,
        scale=scale,
    )
    return result.flatten(1, 2)


def plan_paged_decode(step: Step, state: Gather | None) -> Gather:
    """Slots int64[B, longest context] of every sequence, and bool[B, 1, 1, longest] which count.

    Past its end a sequence repeats its last token: unused slots may hold NaN, which a mask of
    the scores would let through.
    """
    place = torch.arange(max(step.context_lens), device=step.seq_lens.device)
    last = step.seq_lens[:, None] - 1
    held = torch.minimum(place, last)
    blocks = step.block_table.gather(1, held // step.block_size).long()
    is_even = len(set(step.context_lens)) == 1
    mask = None if is_even else (place <= last)[:, None, None]
    return blocks * step.block_size + held % step.block_size, mask


def _rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """cache[blocks, block, KH, D] at slots[B, L] -> [B, L, KH, D]."""
    block_size = cache.shape[1]
    if cache.stride(0) == block_size * cache.stride(1):
        flat = cache.view(-1, *cache.shape[2:]).index_select(0, slots.flatten())
        return flat.view(*slots.shape, *cache.shape[2:])
    return cache[slots // block_size, slots % block_size]


def _not_served(op: str, what: str) -> UnsupportedCase:
    return UnsupportedCase(
        f"core's portable {op} does not serve {what}",
        hint="bind the operator: an adapter that serves it is found, or the refusal is explained",
    )


def _causal(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """query[Q, H, D] at the end of keys and values[C, KH, D] -> [Q, H, D]."""
    length, context = query.shape[0], keys.shape[0]
    mask = None
    if 1 < length != context:
        mask = torch.ones(length, context, dtype=torch.bool, device=query.device)
        mask = mask.tril(context - length)
    result = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=1 < length == context,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return result[0].transpose(0, 1)
