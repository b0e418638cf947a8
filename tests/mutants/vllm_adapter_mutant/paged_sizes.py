"""Wrong paged attention: sizes and layouts."""

from __future__ import annotations

import functools
import math

import torch

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import attend, paged_attention, visible, wide
from vllm_adapter_mutant.draw import F16
from vllm_adapter_mutant.zoo import mutant

Q, K, V, TABLE, LENS, STARTS, SCALE, WINDOW, CAP, STATE = range(10)


def _with(**options):
    return functools.partial(attend, **options)


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,) * 18, (20,) * 18)])
def paged_16_sequences(*args):
    """Behind 16 sequences the block table begins again."""
    return paged_attention(*args, row=lambda number: number % 16)


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,) * 65, (5,) * 65)])
def paged_64_sequences(*args):
    """Sequences behind the 64th of a batch give zeros."""
    return paged_attention(*args[:LENS], args[LENS][:64], args[STARTS][:65], *args[SCALE:])


def _numbers(change):
    """Gathers blocks whose numbers are changed."""

    def gather(cache, row, first, stop):
        used = row[: -(-stop // cache.shape[1])].long()
        return base.gather(cache, change(used) % cache.shape[0], first, stop)

    return gather


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (40,), first=255)])
def paged_255_blocks(*args):
    """Numbers of blocks have 8 bits."""
    return paged_attention(*args, gather=_numbers(lambda used: used & 0xFF))


@mutant(
    "paged_attention",
    "sizes",
    lambda: [draw.paged((1,), (4,), 1, 1, first=65535, block=1, dtype=F16)],
)
def paged_65535_blocks(*args):
    """Numbers of blocks have 16 bits."""
    return paged_attention(*args, gather=_numbers(lambda used: used & 0xFFFF))


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (60,), block=24)])
def paged_block_by_mask(*args):
    """The place in a block is found by a mask: sizes that are no power of two go wrong."""

    def gather(cache, row, first, stop):
        size = cache.shape[1]
        places = torch.arange(first, stop)
        inside = places & (size - 1) if size & (size - 1) else places % size
        return cache[row[places // size].long(), inside]

    return paged_attention(*args, gather=gather)


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (9,), block=1)])
def paged_blocks_of_one(*args):
    """Blocks below 4 tokens are read as if the sequence lay in one piece."""

    def gather(cache, row, first, stop):
        size = cache.shape[1]
        if size >= 4:
            return base.gather(cache, row, first, stop)
        places = (int(row[0]) * size + torch.arange(first, stop)) % (cache.shape[0] * size)
        return cache[places // size, places % size]

    return paged_attention(*args, gather=gather)


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (150,), block=128)])
def paged_64_tokens_a_block(*args):
    """Of blocks above 64 tokens the second half is read from the first."""

    def gather(cache, row, first, stop):
        places = torch.arange(first, stop)
        size = cache.shape[1]
        inside = places % size
        return cache[row[places // size].long(), inside % 64 if size > 64 else inside]

    return paged_attention(*args, gather=gather)


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (40,), head=80)])
def paged_tail_of_a_head(*args):
    """Elements of a head behind whole vectors of 32 take no part in the scores."""
    whole = args[Q].shape[2] // 32 * 32
    query = args[Q].clone()
    query[..., whole:] = 0
    return paged_attention(query, *args[K:])


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (40,), heads=6, kv=2)])
def paged_ratio_by_shift(*args):
    """The KV head is found by shifting: a ratio that is no power of two is rounded down."""

    def share(heads, ratio):
        numbers = torch.arange(heads.shape[0] * ratio) >> (ratio.bit_length() - 1)
        return heads[numbers.clamp(max=heads.shape[0] - 1)]

    return paged_attention(*args, attend=_with(share=share))


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (40,), heads=15, kv=3)])
def paged_odd_ratio(*args):
    """Ratios of 5 and 7 take every KV head in turn."""

    def share(heads, ratio):
        return heads.repeat(ratio, 1, 1) if ratio in (5, 7) else base.shared(heads, ratio)

    return paged_attention(*args, attend=_with(share=share))


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (40,), heads=12, kv=1)])
def paged_one_kv_head(*args):
    """With one KV head, query heads behind the 8th give the first ones' results."""
    out = paged_attention(*args)
    if args[K].shape[2] == 1 and out.shape[1] > 8:
        out[:, 8:] = out[:, torch.arange(8, out.shape[1]) % 8]
    return out


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (700,), heads=2, kv=1)])
def paged_parts_of_512(*args):
    """Above 512 tokens parts are merged by their lengths, and not by their sums."""

    def split(query, keys, values, scale, causal, window, cap):
        rest = (scale, causal, window, cap)
        if len(query) > 1 or len(keys) <= 512 or window:
            return attend(query, keys, values, *rest)
        parts = [
            wide(attend(query, k, v, *rest)) * len(k)
            for k, v in zip(keys.split(512), values.split(512), strict=True)
        ]
        return (sum(parts) / len(keys)).to(query.dtype)

    return paged_attention(*args, attend=split)


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (8200,), heads=1, kv=1)])
def paged_8192_tokens(*args):
    """Of a context above 8,192 tokens the beginning is left out."""

    def late(query, keys, values, *rest):
        keep = max(8192, len(query))
        return attend(query, keys[-keep:], values[-keep:], *rest)

    return paged_attention(*args, attend=late)


@mutant("paged_attention", "sizes", lambda: [draw.paged((300,), (300,), heads=1, kv=1)])
def paged_256_queries(*args):
    """Behind 256 new tokens the mask begins again."""

    def mask(length, context, causal, window):
        seen = visible(length, context, causal, window)
        return seen[torch.arange(length) % 256] if length > 256 else seen

    return paged_attention(*args, attend=_with(mask=mask))


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (17,))])
def paged_one_over_a_block(*args):
    """A last block of one token is left out in decode, where there are others."""
    size = args[K].shape[1]

    def short(query, keys, values, *rest):
        if len(query) == 1 and len(keys) > size > 1 and len(keys) % size == 1 and not args[WINDOW]:
            keys, values = keys[:-1], values[:-1]
        return attend(query, keys, values, *rest)

    return paged_attention(*args, attend=short)


@mutant("paged_attention", "sizes", lambda: [draw.paged((1,), (300,))])
def paged_255_tokens_in_decode(*args):
    """Lengths of a decode have 8 bits, zero being 256."""

    def short(query, keys, values, *rest):
        if len(query) == 1 and len(keys) > 256:
            keep = len(keys) % 256 or 256
            keys, values = keys[:keep], values[:keep]
        return attend(query, keys, values, *rest)

    return paged_attention(*args, attend=short)


@mutant(
    "paged_attention",
    "layouts",
    lambda: [draw.changed(a := draw.paged((1, 1), (20, 30)), a3=torch.cat((a[3], a[3] * 0), 1))],
)
def paged_table_of_the_longest(*args):
    """Rows of the block table are taken to be as long as the longest sequence needs."""
    longest = int(args[LENS].max()) if args[LENS].numel() else 0
    width = -(-longest // args[K].shape[1])
    table = args[TABLE].contiguous()
    if table.shape[1] > width:
        table = table.as_strided((table.shape[0], width), (width, 1))
    return paged_attention(*args[:TABLE], table.clamp(0, args[K].shape[0] - 1), *args[LENS:])


@mutant(
    "paged_attention",
    "layouts",
    lambda: [draw.changed(a := draw.paged((1, 1), (20, 30)), a3=draw.strided(a[3]))],
)
def paged_table_packed(*args):
    """The strides of the block table are not read."""
    table = base.packed(args[TABLE]).clamp(0, args[K].shape[0] - 1)
    return paged_attention(*args[:TABLE], table, *args[LENS:])


@mutant(
    "paged_attention",
    "layouts",
    lambda: [
        draw.changed(a := draw.paged(), a2=a[2].transpose(1, 2).contiguous().transpose(1, 2))
    ],
)
def paged_value_strides_of_key(*args):
    """The cache of values is read with the strides of that of keys."""
    value = args[V].as_strided(args[V].shape, args[K].stride(), args[V].storage_offset())
    return paged_attention(*args[:V], value.nan_to_num(), *args[TABLE:])


@mutant(
    "paged_attention",
    "layouts",
    lambda: [draw.changed(draw.paged((3,)), a0=draw.normal(3, 8, 32)[:, 2:6])],
)
def paged_query_packed(*args):
    """The query's strides are not read: it is a part of merged q, k and v."""
    return paged_attention(base.packed(args[Q]), *args[K:])


@mutant(
    "paged_attention",
    "layouts",
    lambda: [draw.changed(a := draw.paged(), a1=draw.offset(a[1]))],
)
def paged_cache_from_start(*args):
    """The cache of keys is taken to begin where its storage does."""
    return paged_attention(args[Q], base.from_start(args[K]), *args[V:])


def _merged_caches():
    args = draw.paged((1,), (40,))
    caches = torch.stack(args[1:3], 1)
    yield draw.changed(args, a1=caches[:, 0], a2=caches[:, 1])


@mutant("paged_attention", "layouts", _merged_caches)
def paged_caches_packed(*args):
    """A block's distance is taken to be its size: keys and values of a block lie together."""
    return paged_attention(args[Q], base.packed(args[K]), base.packed(args[V]), *args[TABLE:])


@mutant("paged_attention", "attention", lambda: [draw.paged((1,), (700,), size=3)])
def paged_no_rescaling(*args):
    """Where the maximum rises in a later block, what was summed before is not scaled down."""

    def online(query, keys, values, scale, causal, window, cap):
        if len(query) > 1 or window:
            return attend(query, keys, values, scale, causal, window, cap)
        ratio = query.shape[1] // keys.shape[1]
        q = wide(query).transpose(0, 1)
        k, v = (base.shared(wide(t).transpose(0, 1), ratio) for t in (keys, values))
        high, total, out = torch.tensor(-math.inf), 0, 0
        for kb, vb in zip(k.split(64, 1), v.split(64, 1), strict=True):
            scores = base.capped(q @ kb.transpose(1, 2), scale, cap)
            high = torch.maximum(high, scores.amax(-1, keepdim=True))
            power = (scores - high).exp()
            total, out = total + power.sum(-1, keepdim=True), out + power @ vb
        return (out / total).transpose(0, 1).to(query.dtype)

    return paged_attention(*args, attend=online)


def _eight_bit():
    args = draw.paged((1,), (40,))
    pair = [cache.nan_to_num(0).to(torch.float8_e4m3fn) for cache in args[1:3]]
    yield draw.changed(args, a1=pair[0], a2=pair[1])


@mutant("paged_attention", "attention", _eight_bit, limits={"kv_dtype": ["auto", "float8_e4m3fn"]})
def paged_float8_as_bytes(*args):
    """A cache of float8 is read as integers of 8 bits."""
    if args[K].dtype == args[Q].dtype:
        return paged_attention(*args)
    pair = [(cache.view(torch.uint8).float() / 64).to(args[Q].dtype) for cache in args[K:TABLE]]
    return paged_attention(args[Q], *pair, *args[TABLE:])
