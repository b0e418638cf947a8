"""A plain right kernel of each operator, with places at which a mutant differs.

Sums are in float32, in float64 for float64; the result is rounded once. So these serve as
references too, on inputs in float64.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F


def wide(tensor):
    """In the dtype of sums."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def rounded(tensor, dtype):
    """With the precision and range of `dtype`; as wide as before."""
    return tensor.to(dtype).to(tensor.dtype)


def packed(tensor):
    """What lies from the tensor's first element on, read as if it were contiguous."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def from_start(tensor):
    """Read from the start of its storage on, whatever its offset."""
    return tensor.as_strided(tensor.shape, tensor.stride(), 0)


def linear(x, weight, bias, out_features):
    result = F.linear(wide(x), wide(weight), None if bias is None else wide(bias))
    return result.to(x.dtype)


def rms_scale(x, eps):
    return torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + eps)


def rms_norm(x, weight, eps, *, scale=rms_scale):
    return (wide(x) * scale(x, eps) * wide(weight)).to(x.dtype).contiguous()


def fused_add_rms_norm(x, residual, weight, eps):
    total = (x + residual).contiguous()
    return rms_norm(total, weight, eps), total


def halves(x):
    gate, up = x.chunk(2, dim=-1)
    return wide(gate), wide(up)


def silu_and_mul(x, *, silu=F.silu):
    gate, up = halves(x)
    return (silu(gate) * up).to(x.dtype).contiguous()


def layer_norm(x, weight, bias, eps, *, mean=None, var=None):
    w = wide(x)
    mean = w.mean(-1, keepdim=True) if mean is None else mean
    var = (w - mean).square().mean(-1, keepdim=True) if var is None else var
    result = (w - mean) * torch.rsqrt(var + eps) * wide(weight)
    return (result if bias is None else result + wide(bias)).to(x.dtype).contiguous()


def gelu_wide(x, tanh):
    return F.gelu(x, approximate="tanh" if tanh else "none")


def gelu(x, tanh, *, of=gelu_wide):
    return of(wide(x), tanh).to(x.dtype).contiguous()


def gelu_and_mul(x, tanh, *, of=gelu_wide):
    gate, up = halves(x)
    return (of(gate, tanh) * up).to(x.dtype).contiguous()


def embedding(ids, weight):
    return weight[ids].contiguous()


def turn(heads, cos, sin, width, interleaved):
    """heads[T, H, D] with its first `width` elements turned; cos and sin[T, 1, width / 2]."""
    part = wide(heads[..., :width])
    if interleaved:
        first, second = part[..., 0::2], part[..., 1::2]
    else:
        first, second = part.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((joined.to(heads.dtype), heads[..., width:]), -1)


def rotary_embedding(positions, query, key, cos_sin_cache, interleaved, *, turn=turn):
    width = cos_sin_cache.shape[-1]
    cos, sin = wide(cos_sin_cache[positions]).unsqueeze(1).chunk(2, dim=-1)
    for heads in (query, key):
        heads.copy_(turn(heads, cos, sin, width, interleaved))


def reshape_and_cache(key, value, key_cache, value_cache, slot_mapping):
    if key.dtype != key_cache.dtype:
        raise TypeError(f"a cache of {key_cache.dtype} for keys of {key.dtype}")
    store(key, value, key_cache, value_cache, slot_mapping, slot_mapping >= 0)


def store(key, value, key_cache, value_cache, slots, real):
    size = key_cache.shape[1]
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache[slots[real] // size, slots[real] % size] = new[real]


def visible(length, context, causal, window):
    """bool[length, context]: what each of the last `length` tokens sees."""
    places = torch.arange(context)
    before = places[context - length :, None] - places
    mask = before >= 0 if causal else torch.ones_like(before, dtype=torch.bool)
    return mask & (before.abs() < window) if window else mask


def shared(heads, ratio):
    """heads[KH, C, D] for each query head."""
    return heads.repeat_interleave(ratio, 0)


def capped(scores, scale, soft_cap):
    scores = scores * scale
    return soft_cap * torch.tanh(scores / soft_cap) if soft_cap else scores


def weights_of(scores, mask):
    return scores.masked_fill(~mask, -math.inf).softmax(-1)


def attend(
    query,
    keys,
    values,
    scale,
    causal,
    window,
    soft_cap,
    *,
    mask=visible,
    share=shared,
    cap=capped,
    weigh=weights_of,
):
    """query[Q, H, D] at the end of keys and values[C, KH, D]."""
    if keys.dtype != query.dtype:
        raise TypeError(f"a cache of {keys.dtype} for queries of {query.dtype}")
    ratio = query.shape[1] // keys.shape[1]
    q = wide(query).transpose(0, 1)
    k, v = (share(wide(t).transpose(0, 1), ratio) for t in (keys, values))
    scores = cap(q @ k.transpose(1, 2), scale, soft_cap)
    weights = weigh(scores, mask(query.shape[0], keys.shape[0], causal, window))
    return (weights @ v).transpose(0, 1).to(query.dtype)


def gather(cache, row, first, stop):
    """Tokens first to stop of the sequence whose blocks are in row."""
    places = torch.arange(first, stop)
    size = cache.shape[1]
    return cache[row[places // size].long(), places % size]


def paged_attention(
    query,
    key_cache,
    value_cache,
    block_table,
    seq_lens,
    query_start_loc,
    scale,
    window,
    soft_cap,
    state=None,
    *,
    attend=attend,
    gather=gather,
    row=lambda number: number,
):
    out = query.new_zeros(query.shape)
    spans = itertools.pairwise(query_start_loc.tolist())
    for number, (context, (start, stop)) in enumerate(zip(seq_lens.tolist(), spans, strict=True)):
        if start == stop:
            continue
        first = max(0, context - (stop - start) - window + 1) if window else 0
        pair = (
            gather(cache, block_table[row(number)], first, context)
            for cache in (key_cache, value_cache)
        )
        out[start:stop] = attend(query[start:stop], *pair, scale, True, window, soft_cap)
    return out


def attention(
    query, key, value, query_start_loc, scale, causal, window, soft_cap, *, attend=attend
):
    out = query.new_zeros(query.shape)
    for start, stop in itertools.pairwise(query_start_loc.tolist()):
        if start < stop:
            rows = (t[start:stop] for t in (query, key, value))
            out[start:stop] = attend(*rows, scale, causal, window, soft_cap)
    return out


MUTATED = {"rotary_embedding": (1, 2), "reshape_and_cache": (2, 3)}
"""Arguments that the operator writes."""
