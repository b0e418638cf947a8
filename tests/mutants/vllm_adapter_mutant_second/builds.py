"""Right kernels of builds unlike the plain ones."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from vllm_adapter_mutant import base

from vllm_adapter_mutant_second.zoo import right


@right("linear")
def right_second_linear_by_columns(x, weight, bias, out_features):
    """Outer products of 32 columns at a time, summed in float64."""
    total = torch.zeros(*x.shape[:-1], out_features, dtype=torch.float64)
    if bias is not None:
        total += bias.double()
    for a, b in zip(x.double().split(32, -1), weight.double().split(32, -1), strict=True):
        total += torch.einsum("...k,nk->...n", a, b)
    return total.to(x.dtype)


@right("linear")
def right_second_linear_as_convolution(x, weight, bias, out_features):
    """A convolution of length one."""
    flat = base.wide(x).reshape(-1, x.shape[-1], 1)
    made = F.conv1d(
        flat, base.wide(weight).unsqueeze(-1), None if bias is None else base.wide(bias)
    )
    return made.reshape(*x.shape[:-1], out_features).to(x.dtype)


@right("rms_norm")
def right_second_rms_by_torch(x, weight, eps):
    """torch's own, in the dtype of sums."""
    return F.rms_norm(base.wide(x), x.shape[-1:], base.wide(weight), eps).to(x.dtype).contiguous()


@right("fused_add_rms_norm")
def right_second_fused_by_products(x, residual, weight, eps):
    """The sum of squares as a product of the row with itself, in float64."""
    total = (x + residual).contiguous()
    w = total.double()
    mean = torch.einsum("...k,...k->...", w, w).unsqueeze(-1) / w.shape[-1]
    return (w / (mean + eps).sqrt() * weight.double()).to(x.dtype), total


@right("layer_norm")
def right_second_layer_norm_by_torch(x, weight, bias, eps):
    """torch's own, in the dtype of sums."""
    b = None if bias is None else base.wide(bias)
    made = F.layer_norm(base.wide(x), x.shape[-1:], base.wide(weight), b, eps)
    return made.to(x.dtype).contiguous()


@right("silu_and_mul")
def right_second_silu_by_log(x):
    """The sigmoid as the exponent of its logarithm, in float64."""
    gate, up = (t.double() for t in x.chunk(2, -1))
    return (gate * F.logsigmoid(gate).exp() * up).to(x.dtype).contiguous()


@right("gelu")
def right_second_gelu_by_distribution(x, tanh):
    """Phi by torch's normal distribution; tanh by the sigmoid."""
    w = x.double()
    if tanh:
        phi = torch.sigmoid(2 * math.sqrt(2 / math.pi) * (w + 0.044715 * w**3))
    else:
        phi = torch.special.ndtr(w)
    return (w * phi).to(x.dtype).contiguous()


@right("embedding")
def right_second_embedding_by_gather(ids, weight):
    """`gather` along the table's rows."""
    flat = ids.reshape(-1, 1).expand(-1, weight.shape[1])
    return torch.gather(weight, 0, flat).view(*ids.shape, weight.shape[1])


@right("rotary_embedding")
def right_second_rope_by_matrices(positions, query, key, cos_sin_cache, interleaved):
    """Each pair times a matrix of two rows."""
    half = cos_sin_cache.shape[-1] // 2
    cos, sin = base.wide(cos_sin_cache[positions]).chunk(2, dim=-1)
    turns = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)
    numbers = torch.arange(2 * half).view(half, 2) if interleaved else torch.arange(2 * half)
    numbers = numbers if interleaved else numbers.view(2, half).T
    for heads in (query, key):
        pairs = base.wide(heads[..., numbers.reshape(-1)]).unflatten(-1, (half, 2))
        made = torch.einsum("tpij,thpj->thpi", turns, pairs).flatten(-2)
        heads[..., numbers.reshape(-1)] = made.to(heads.dtype)


@right("reshape_and_cache")
def right_second_cache_by_blocks(key, value, key_cache, value_cache, slot_mapping):
    """Block by block, those of the slots that lie in it."""
    if key.dtype != key_cache.dtype:
        raise TypeError(f"a cache of {key_cache.dtype} for keys of {key.dtype}")
    size = key_cache.shape[1]
    real = (slot_mapping >= 0).nonzero().flatten()
    blocks = slot_mapping[real] // size
    for block in blocks.unique().tolist():
        tokens = real[blocks == block]
        places = slot_mapping[tokens] - block * size
        key_cache[block].index_copy_(0, places, key[tokens])
        value_cache[block].index_copy_(0, places, value[tokens])


@right("paged_attention")
def right_second_paged_by_blocks(
    query, key_cache, value_cache, block_table, seq_lens, starts, scale, window, cap, state=None
):
    """Block by block, latest first, with sums that are scaled again; exponents of two."""
    if key_cache.dtype != query.dtype:
        raise TypeError(f"a cache of {key_cache.dtype} for queries of {query.dtype}")
    size, ratio = key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    out = query.new_zeros(query.shape)
    spans = itertools.pairwise(starts.tolist())
    for number, (context, (start, stop)) in enumerate(zip(seq_lens.tolist(), spans, strict=True)):
        if start == stop:
            continue
        q = base.wide(query[start:stop])
        places = torch.arange(context - (stop - start), context)
        top = q.new_full(q.shape[:2], -math.inf)
        total, made = torch.zeros_like(top), torch.zeros_like(q)
        for block in range((context - 1) // size, -1, -1):
            held = torch.arange(block * size, min(context, (block + 1) * size))
            seen = held <= places[:, None]
            if window:
                seen &= held > places[:, None] - window
            if not seen.any():
                continue
            used = seen.any(0)
            held, seen = held[used], seen[:, used]
            row = int(block_table[number, block])
            k, v = (
                base.wide(c[row, held - block * size]).repeat_interleave(ratio, 1)
                for c in (key_cache, value_cache)
            )
            scores = torch.einsum("qhd,chd->qhc", q, k) * scale
            if cap:
                scores = cap * torch.tanh(scores / cap)
            scores = (scores * math.log2(math.e)).masked_fill(~seen[:, None], -math.inf)
            higher = torch.maximum(top, scores.amax(-1))
            base_of = higher.masked_fill(higher == -math.inf, 0)
            rescale = torch.exp2(top - base_of)
            weights = torch.exp2(scores - base_of[..., None])
            total = total * rescale + weights.sum(-1)
            made = made * rescale[..., None] + torch.einsum("qhc,chd->qhd", weights, v)
            top = higher
        out[start:stop] = (made / total[..., None]).to(query.dtype)
    return out


@right("attention")
def right_second_encoder_in_one_batch(query, key, value, starts, scale, causal, window, cap):
    """All sequences at once in float64, with a mask between them."""
    ratio = query.shape[1] // key.shape[1]
    places = torch.arange(len(query))
    text = torch.bucketize(places, starts[1:].long(), right=True)
    seen = text[:, None] == text
    apart = places[:, None] - places
    if causal:
        seen &= apart >= 0
    if window:
        seen &= apart.abs() < window
    k, v = (t.double().repeat_interleave(ratio, 1) for t in (key, value))
    scores = torch.einsum("qhd,chd->hqc", query.double(), k) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("hqc,chd->qhd", weights, v).to(query.dtype)
