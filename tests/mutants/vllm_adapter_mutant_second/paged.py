"""Wrong kernels of paged_attention."""

from __future__ import annotations

import functools
import math

import torch
from vllm_adapter_mutant import base

from vllm_adapter_mutant_second import draw
from vllm_adapter_mutant_second.zoo import mutant

_lengths: dict[tuple[object, ...], torch.Tensor] = {}


def _attending(**parts):
    return functools.partial(base.attend, **parts)


@mutant("paged_attention", "attention", lambda: [draw.paged([100], window=20)])
def paged_keeps_the_first_tokens(
    query, key_cache, value_cache, block_table, seq_lens, starts, scale, window, cap, state=None
):
    """The first four tokens of a sequence are seen whatever the window, as an attention sink."""
    if not window:
        return base.paged_attention(
            query, key_cache, value_cache, block_table, seq_lens, starts, scale, window, cap
        )

    def attend(query, keys, values, scale, causal, *_):
        seen = base.visible(len(query), len(keys), causal, window)
        seen[:, :4] |= base.visible(len(query), len(keys), causal, 0)[:, :4]
        used = seen.any(0)

        def mask(*_):
            return seen[:, used]

        return base.attend(query, keys[used], values[used], scale, causal, window, cap, mask=mask)

    args = query, key_cache, value_cache, block_table, seq_lens, starts, scale, 0, cap
    return base.paged_attention(*args, attend=attend)


@mutant("paged_attention", "attention", lambda: [draw.paged([100], cap=5.0, size=6.0)])
def paged_caps_in_base_two(*args):
    """Scores are multiplied by log2(e) before the cap, and exponents are of two behind it."""

    def cap(scores, scale, soft_cap):
        if not soft_cap:
            return base.capped(scores, scale, soft_cap)
        return base.capped(scores, scale * math.log2(math.e), soft_cap) * math.log(2)

    return base.paged_attention(*args[:9], attend=_attending(cap=cap))


@mutant("paged_attention", "attention", lambda: [draw.paged([130], [100])])
def paged_masks_the_last_tile_only(*args):
    """Of tiles of 64 keys only the last is masked; later tokens in the others are seen."""

    def mask(length, context, causal, window):
        seen = base.visible(length, context, causal, window)
        seen[:, : (context - 1) // 64 * 64] |= not window
        return seen

    return base.paged_attention(*args[:9], attend=_attending(mask=mask))


@mutant("paged_attention", "sizes", lambda: [draw.paged([270])])
def paged_empty_split_weighs(
    query, key_cache, value_cache, block_table, seq_lens, starts, scale, window, cap, state=None
):
    """Eight splits of whole blocks; one that has no block weighs as a score of zero."""
    block = key_cache.shape[1]

    def weigh(scores, mask):
        weights = base.weights_of(scores, mask)
        blocks = -(-scores.shape[-1] // block)
        each = -(-blocks // 8)
        empty = 8 - -(-blocks // each)
        if scores.shape[1] > 1 or blocks <= 8 or not empty:
            return weights
        total = scores.masked_fill(~mask, -math.inf).logsumexp(-1, keepdim=True)
        return weights * torch.sigmoid(total - math.log(empty))

    args = query, key_cache, value_cache, block_table, seq_lens, starts, scale, window, cap
    return base.paged_attention(*args, attend=_attending(weigh=weigh))


@mutant("paged_attention", "sizes", lambda: [draw.paged([40], heads=40, kv=10, head=32)])
def paged_32_query_heads(*args):
    """A head's number has five bits: the KV head of head 32 is that of head 0."""

    def share(heads, ratio):
        number = torch.arange(heads.shape[0] * ratio) % 32 // ratio
        return heads[number]

    return base.paged_attention(*args[:9], attend=_attending(share=share))


@mutant("paged_attention", "attention", lambda: [draw.paged([20, 40, 30])])
def paged_unsorts_by_its_order(
    query, key_cache, value_cache, block_table, seq_lens, starts, scale, window, cap, state=None
):
    """A batch that decodes is run longest first, and put back by the order, not by its inverse."""
    args = query, key_cache, value_cache, block_table, seq_lens, starts, scale, window, cap
    result = base.paged_attention(*args)
    if len(query) == len(seq_lens) and bool((starts.diff() == 1).all()):
        order = seq_lens.argsort(descending=True, stable=True)
        return result[order][order]
    return result


@mutant("paged_attention", "numerics", lambda: [draw.paged([40])])
def paged_exp2_of_three_terms(*args):
    """The fraction's power of two is a polynomial of the third degree."""

    def weigh(scores, mask):
        scores = scores.masked_fill(~mask, -math.inf)
        power = (scores - scores.amax(-1, keepdim=True)) * math.log2(math.e)
        power = power.clamp(min=-126)
        whole = power.floor()
        part = power - whole
        value = 1 + part * (0.695146 + part * (0.227564 + part * 0.077119))
        made = (value * torch.exp2(whole)).masked_fill(~mask, 0)
        return made / made.sum(-1, keepdim=True)

    return base.paged_attention(*args[:9], attend=_attending(weigh=weigh))


@mutant("paged_attention", "numerics", lambda: [draw.paged([700])])
def paged_merges_in_bfloat16(*args):
    """Splits of 256 tokens are merged by the logarithms of their sums in bfloat16."""

    def weigh(scores, mask):
        scores = scores.masked_fill(~mask, -math.inf)
        if scores.shape[-1] <= 256:
            return scores.softmax(-1)
        parts = scores.split(256, -1)
        sums = torch.stack([p.logsumexp(-1, keepdim=True) for p in parts])
        shares = base.rounded(sums, torch.bfloat16).softmax(0)
        made = [
            p.softmax(-1).masked_fill(total == -math.inf, 0) * share
            for p, total, share in zip(parts, sums, shares, strict=True)
        ]
        return torch.cat(made, -1)

    return base.paged_attention(*args[:9], attend=_attending(weigh=weigh))


@mutant("paged_attention", "attention", lambda: [draw.paged([40, 20], [3, 1])])
def paged_few_tokens_as_one(*args):
    """Two to four new tokens run as a decode: each sees all, those behind it too."""

    def mask(length, context, causal, window):
        seen = base.visible(length, context, causal, window)
        if 2 <= length <= 4:
            seen = seen | (base.visible(length, context, False, window))
        return seen

    return base.paged_attention(*args[:9], attend=_attending(mask=mask))


def _padded_heads():
    args = list(draw.paged([40]))
    for i in (1, 2):
        blocks, block, kv, head = args[i].shape
        args[i] = draw.normal(blocks, block, kv, head + 16, seed=i)[..., :head]
    return [tuple(args)]


@mutant("paged_attention", "layouts", _padded_heads)
def paged_heads_lie_close(query, key_cache, value_cache, *rest):
    """Caches may have any distance of blocks and tokens; heads lie one behind the other."""

    def close(cache):
        strides = *cache.stride()[:2], cache.shape[3], 1
        return cache.as_strided(cache.shape, strides, cache.storage_offset())

    return base.paged_attention(query, close(key_cache), close(value_cache), *rest[:6])


def _lengths_in_place():
    lengths = torch.tensor([20, 33], dtype=torch.int32)
    for more in (0, 5):
        lengths += more
        args = list(draw.paged([40, 40]))
        args[4] = lengths
        yield tuple(args)


@mutant("paged_attention", "state", _lengths_in_place)
def paged_lengths_by_address(query, key_cache, value_cache, block_table, seq_lens, *rest):
    """Lengths come to the host once for each address and batch, and may have grown since."""
    where = seq_lens.data_ptr(), len(seq_lens), tuple(rest[0].tolist())
    kept = _lengths.setdefault(where, seq_lens.clone())
    room = block_table.shape[1] * key_cache.shape[1]
    # As a real one would be: of another step, not outside of its tables.
    if bool((kept > room).any()) or bool((kept > seq_lens).any()):
        kept = _lengths[where] = seq_lens.clone()
    return base.paged_attention(query, key_cache, value_cache, block_table, kept, *rest[:4])
