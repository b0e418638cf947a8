"""Right kernels of attention, of builds unlike the CPU's own."""

from __future__ import annotations

import functools
import itertools
import math

import torch
import torch.nn.functional as F

from vllm_adapter_mutant import base
from vllm_adapter_mutant.base import attend, attention, capped, paged_attention, visible, wide
from vllm_adapter_mutant.zoo import right


def _same(query, keys):
    if query.dtype != keys.dtype:
        raise TypeError(f"a cache of {keys.dtype} for queries of {query.dtype}")


def _by_heads(query, keys, values):
    _same(query, keys)
    ratio = query.shape[1] // keys.shape[1]
    k, v = (base.shared(wide(t).transpose(0, 1), ratio) for t in (keys, values))
    return wide(query).transpose(0, 1), k, v


def flash(query, keys, values, scale, causal, window, cap, *, block=64, exp=torch.exp):
    """Block by block of keys, with a running maximum."""
    q, k, v = _by_heads(query, keys, values)
    seen = visible(len(query), len(keys), causal, window)
    high = torch.full((*q.shape[:2], 1), -math.inf, dtype=q.dtype)
    total, out = torch.zeros_like(high), torch.zeros_like(q)
    parts = zip(k.split(block, 1), v.split(block, 1), seen.split(block, 1), strict=True)
    for keys, values, mask in parts:
        scores = capped(q @ keys.transpose(1, 2), scale, cap).masked_fill(~mask, -math.inf)
        now = torch.maximum(high, scores.amax(-1, keepdim=True))
        safe = now.masked_fill(now == -math.inf, 0)
        power, fade = exp(scores - safe), exp(high - safe)
        total = total * fade + power.sum(-1, keepdim=True)
        out = out * fade + power @ values
        high = now
    return (out / total).transpose(0, 1).to(query.dtype)


def split_keys(query, keys, values, scale, causal, window, cap, *, parts=4):
    """Parts of the keys on their own, merged by the logarithms of their sums."""
    q, k, v = _by_heads(query, keys, values)
    seen = visible(len(query), len(keys), causal, window)
    size = -(-len(keys) // parts)
    sums, outs = [], []
    for kb, vb, mask in zip(k.split(size, 1), v.split(size, 1), seen.split(size, 1), strict=True):
        scores = capped(q @ kb.transpose(1, 2), scale, cap).masked_fill(~mask, -math.inf)
        sums.append(scores.logsumexp(-1, keepdim=True))
        outs.append(scores.softmax(-1).nan_to_num(0) @ vb)
    share = torch.stack(sums).softmax(0)
    return (share * torch.stack(outs)).sum(0).transpose(0, 1).to(query.dtype)


def eager(query, keys, values, scale, causal, window, cap):
    """As transformers: scores in the dtype, softmax in float32, weights in the dtype again."""
    _same(query, keys)
    ratio = query.shape[1] // keys.shape[1]
    q = query.transpose(0, 1)
    k, v = (base.shared(t.transpose(0, 1), ratio) for t in (keys, values))
    scores = torch.matmul(q, k.transpose(1, 2)) * scale
    if cap:
        scores = torch.tanh(scores / cap) * cap
    mask = visible(len(query), len(keys), causal, window)
    scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1, dtype=wide(q).dtype).to(q.dtype)
    return torch.matmul(weights, v).transpose(0, 1)


def by_torch(query, keys, values, scale, causal, window, cap):
    """torch's own attention with a mask; a soft cap by hand."""
    if cap:
        return attend(query, keys, values, scale, causal, window, cap)
    ratio = query.shape[1] // keys.shape[1]
    k, v = (base.shared(t.transpose(0, 1), ratio)[None] for t in (keys, values))
    mask = visible(len(query), len(keys), causal, window)
    result = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None], k, v, attn_mask=mask, scale=scale
    )
    return result[0].transpose(0, 1)


def in_tiles(query, keys, values, scale, causal, window, cap, *, tile=16):
    """Queries in tiles, each with the keys that it sees, weights rounded to the dtype."""

    def weigh(scores, mask):
        return base.weights_of(scores, mask).to(query.dtype).to(scores.dtype)

    if not causal:
        return attend(query, keys, values, scale, causal, window, cap)
    before = len(keys) - len(query)
    return torch.cat(
        [
            attend(
                query[i : i + tile], keys[:stop], values[:stop], scale, True, window, cap,
                weigh=weigh,
            )
            for i in range(0, len(query), tile)
            for stop in (before + min(i + tile, len(query)),)
        ]
    )  # fmt: skip


@right("paged_attention")
def right_paged_flash(*args):
    """Online softmax over 64 keys at a time."""
    return paged_attention(*args, attend=flash)


@right("paged_attention")
def right_paged_powers_of_two(*args):
    """Online softmax over 16 keys at a time, with powers of two in place of exp."""
    fast = functools.partial(flash, block=16, exp=lambda x: torch.exp2(x * math.log2(math.e)))
    return paged_attention(*args, attend=fast)


@right("paged_attention")
def right_paged_split(*args):
    """Four parts of the keys, merged."""
    return paged_attention(*args, attend=split_keys)


@right("paged_attention")
def right_paged_eager(*args):
    """transformers' eager rounding."""
    return paged_attention(*args, attend=eager)


@right("paged_attention")
def right_paged_by_torch(*args):
    """torch's own attention, sequence by sequence."""
    return paged_attention(*args, attend=by_torch)


@right("paged_attention")
def right_paged_tiles(*args):
    """Tiles of 16 queries; weights rounded to the dtype, as tensor cores want them."""
    return paged_attention(*args, attend=in_tiles)


@right("paged_attention")
def right_paged_whole_blocks(*args):
    """Whole blocks are read, and what no query sees is set to zero before it is used."""

    def gather(cache, row, first, stop):
        size = cache.shape[1]
        begin, end = first // size, -(-stop // size)
        rows = cache[row[begin:end].long()].flatten(0, 1)
        places = torch.arange(begin * size, end * size)
        real = (places >= first) & (places < stop)
        clean = torch.where(real[:, None, None], rows, torch.zeros((), dtype=rows.dtype))
        return clean[real]

    return paged_attention(*args, gather=gather)


@right("paged_attention")
def right_paged_double(*args):
    """Computed in float64."""

    def exact(query, keys, values, *rest):
        _same(query, keys)
        return attend(query.double(), keys.double(), values.double(), *rest).to(query.dtype)

    return paged_attention(*args, attend=exact)


def plan_lengths(step, state):
    """Starts and contexts of a step, on the host."""
    return tuple(itertools.accumulate(step.query_lens, initial=0)), step.context_lens


@right("paged_attention", plan="vllm_adapter_mutant.builds_attention:plan_lengths")
def right_paged_planned(*args):
    """Takes its lengths from the plan, where there is one."""
    if args[-1] is None:
        return paged_attention(*args, attend=flash)
    starts, contexts = (torch.tensor(t, dtype=torch.int32) for t in args[-1])
    return paged_attention(*args[:4], contexts, starts, *args[6:], attend=flash)


@right("attention")
def right_encoder_flash(*args):
    """Online softmax over 64 keys at a time."""
    return attention(*args, attend=flash)


@right("attention")
def right_encoder_split(*args):
    """Four parts of the keys, merged."""
    return attention(*args, attend=split_keys)


@right("attention")
def right_encoder_eager(*args):
    """transformers' eager rounding."""
    return attention(*args, attend=eager)


@right("attention")
def right_encoder_by_torch(*args):
    """torch's own attention with a mask."""
    return attention(*args, attend=by_torch)


@right("attention")
def right_encoder_tiles(*args):
    """Tiles of 16 queries where it is causal."""
    return attention(*args, attend=in_tiles)
