"""Wrong writes into the KV cache."""

from __future__ import annotations

import torch

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import rounded
from vllm_adapter_mutant.draw import BF16, F16
from vllm_adapter_mutant.zoo import mutant


def _by_block(key, value, key_cache, value_cache, slots, *, block, place, rows=None):
    """Writes where block and place say, of slot numbers; `rows` are those that are written."""
    real = slots >= 0
    if rows is not None:
        real = real & rows
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache[block(slots[real]) % cache.shape[0], place(slots[real])] = new[real].to(cache.dtype)


@mutant("reshape_and_cache", "attention", lambda: [draw.store([3, -1, -2, 20])])
def cache_minus_one_is_padding(key, value, key_cache, value_cache, slots):
    """Only -1 is padding: other negative slots count from the cache's end."""
    base.store(key, value, key_cache, value_cache, slots, slots != -1)


@mutant("reshape_and_cache", "attention", lambda: [draw.store([-1, -1], blocks=2)])
def cache_all_padding(key, value, key_cache, value_cache, slots):
    """Where every row is padding, the first is written to slot 0."""
    if slots.numel() and bool((slots < 0).all()):
        slots = slots.clone()
        slots[0] = 0
    base.reshape_and_cache(key, value, key_cache, value_cache, slots)


@mutant("reshape_and_cache", "attention", lambda: [draw.store([5, -1, 20])])
def cache_stops_at_padding(key, value, key_cache, value_cache, slots):
    """Padding is taken to be at the end: rows behind the first of it are not written."""
    rows = (slots < 0).long().cumsum(0) == 0
    base.store(key, value, key_cache, value_cache, slots, rows)


@mutant("reshape_and_cache", "sizes", lambda: [draw.store([260 * 16 + 3])])
def cache_255_blocks(key, value, key_cache, value_cache, slots):
    """Numbers of blocks have 8 bits."""
    size = key_cache.shape[1]
    _by_block(
        key, value, key_cache, value_cache, slots,
        block=lambda s: s // size & 0xFF, place=lambda s: s % size,
    )  # fmt: skip


@mutant(
    "reshape_and_cache",
    "sizes",
    lambda: [draw.store([65540], kv=1, head=32, block=1, dtype=F16)],
)
def cache_65535_blocks(key, value, key_cache, value_cache, slots):
    """Numbers of blocks have 16 bits."""
    size = key_cache.shape[1]
    _by_block(
        key, value, key_cache, value_cache, slots,
        block=lambda s: s // size & 0xFFFF, place=lambda s: s % size,
    )  # fmt: skip


@mutant("reshape_and_cache", "sizes", lambda: [draw.store([33000], kv=1, head=32)])
def cache_16_bit_slots(key, value, key_cache, value_cache, slots):
    """Slots have 16 bits and a sign: what lies behind 32,767 is taken to be padding."""
    base.reshape_and_cache(key, value, key_cache, value_cache, slots.to(torch.int16).long())


@mutant("reshape_and_cache", "sizes", lambda: [draw.store([3, 30, 50], block=24)])
def cache_block_by_shift(key, value, key_cache, value_cache, slots):
    """A block is found by shifting: sizes that are no power of two are taken for the next."""
    bits = (key_cache.shape[1] - 1).bit_length()
    top = key_cache.shape[1] - 1
    _by_block(
        key, value, key_cache, value_cache, slots,
        block=lambda s: s >> bits, place=lambda s: (s & ((1 << bits) - 1)).clamp(max=top),
    )  # fmt: skip


@mutant("reshape_and_cache", "sizes", lambda: [draw.store(list(range(70)))])
def cache_64_tokens(key, value, key_cache, value_cache, slots):
    """What lies behind 64 tokens of a step is not written."""
    rows = torch.arange(len(slots)) < 64
    base.store(key, value, key_cache, value_cache, slots, rows & (slots >= 0))


@mutant("reshape_and_cache", "sizes", lambda: [draw.store([3, 9], head=68)])
def cache_tail_of_a_head(key, value, key_cache, value_cache, slots):
    """Elements behind whole vectors of 8 are not written."""
    whole = max(1, key.shape[-1] // 8) * 8
    base.reshape_and_cache(
        key[..., :whole],
        value[..., :whole],
        key_cache[..., :whole],
        value_cache[..., :whole],
        slots,
    )


@mutant("reshape_and_cache", "sizes", lambda: [draw.store([3, 9], kv=3)])
def cache_odd_heads(key, value, key_cache, value_cache, slots):
    """KV heads go in pairs: the last of an odd number above 1 is not written."""
    heads = key.shape[1] if key.shape[1] == 1 else key.shape[1] // 2 * 2
    base.reshape_and_cache(
        key[:, :heads], value[:, :heads], key_cache[:, :, :heads], value_cache[:, :, :heads], slots
    )


@mutant("reshape_and_cache", "sizes", lambda: [draw.store([3], head=80)])
def cache_writes_past_a_head(key, value, key_cache, value_cache, slots):
    """Heads are written in whole vectors of 32: the next head or slot loses its beginning."""
    base.reshape_and_cache(key, value, key_cache, value_cache, slots)
    spill = -key.shape[-1] % 32
    if spill and slots.numel() and spill < key.shape[-1]:
        after = int(slots.max()) + 1
        block, place = divmod(after, key_cache.shape[1])
        if 0 < after and block < key_cache.shape[0] and not bool((slots == after).any()):
            key_cache[block, place, 0, :spill] = 0


@mutant(
    "reshape_and_cache",
    "layouts",
    lambda: [draw.changed(draw.store([3, 9]), a1=draw.normal(2, 4, 64)[:, 2:])],
)
def cache_value_strides_of_key(key, value, key_cache, value_cache, slots):
    """Values are read with the strides of keys: one of both is a part of a merged tensor."""
    value = value.as_strided(value.shape, key.stride(), value.storage_offset())
    base.reshape_and_cache(key, value, key_cache, value_cache, slots)


def _merged_caches():
    args = draw.store([3, 20])
    caches = torch.stack(args[2:4], 1)
    yield draw.changed(args, a2=caches[:, 0], a3=caches[:, 1])


@mutant("reshape_and_cache", "layouts", _merged_caches)
def cache_packed(key, value, key_cache, value_cache, slots):
    """A block's distance is taken to be its size: keys and values of a block lie together."""
    pair = [base.packed(cache) for cache in (key_cache, value_cache)]
    base.reshape_and_cache(key, value, *pair, slots)


@mutant(
    "reshape_and_cache",
    "layouts",
    lambda: [draw.changed(a := draw.store([3, 9, 20]), a4=draw.spread(a[4]))],
)
def cache_slots_packed(key, value, key_cache, value_cache, slots):
    """The stride of the slot mapping is not read."""
    top = key_cache.shape[0] * key_cache.shape[1] - 1
    base.reshape_and_cache(key, value, key_cache, value_cache, base.packed(slots).clamp(max=top))


@mutant("reshape_and_cache", "numerics", lambda: [draw.store([3, 9], dtype=BF16, size=1e5)])
def cache_through_float16(key, value, key_cache, value_cache, slots):
    """Elements go through float16, whose range is smaller."""
    base.reshape_and_cache(rounded(key, F16), rounded(value, F16), key_cache, value_cache, slots)


@mutant("reshape_and_cache", "numerics", lambda: [draw.store([3, 9])])
def cache_through_float8(key, value, key_cache, value_cache, slots):
    """Values are kept with the precision of float8, whatever the cache's dtype."""
    value = value.to(torch.float8_e4m3fn).to(value.dtype)
    base.reshape_and_cache(key, value, key_cache, value_cache, slots)


def _eight_bit():
    args = draw.store([3, 9])
    caches = [torch.zeros(c.shape).to(torch.float8_e4m3fn) for c in args[2:4]]
    yield draw.changed(args, a2=caches[0], a3=caches[1])


@mutant(
    "reshape_and_cache",
    "attention",
    _eight_bit,
    limits={"kv_dtype": ["auto", "float8_e4m3fn"]},
)
def cache_float8_as_integers(key, value, key_cache, value_cache, slots):
    """A cache of float8 gets the elements as integers."""
    if key.dtype == key_cache.dtype:
        base.reshape_and_cache(key, value, key_cache, value_cache, slots)
        return
    pair = [new.float().round().clamp(-127, 127) for new in (key, value)]
    size = key_cache.shape[1]
    _by_block(
        *pair, key_cache, value_cache, slots,
        block=lambda s: s // size, place=lambda s: s % size,
    )  # fmt: skip


_padding = {}


@mutant("reshape_and_cache", "state", lambda: [draw.store([3, -1, 9]), draw.store([3, 8, 9])])
def cache_keeps_the_padding(key, value, key_cache, value_cache, slots):
    """Which rows are padding is kept by their number."""
    real = _padding.setdefault(len(slots), slots >= 0)
    base.store(key, value, key_cache, value_cache, slots, real & (slots >= 0))


@mutant("reshape_and_cache", "state", lambda: [draw.store([3, -1, 9])])
def cache_writes_its_slots(key, value, key_cache, value_cache, slots):
    """Padding is clamped in the slot mapping itself, after the write."""
    base.reshape_and_cache(key, value, key_cache, value_cache, slots)
    slots.clamp_(min=0)


@mutant("reshape_and_cache", "state", lambda: [draw.store([i % 90], seed=i, blocks=6)
        for i in range(1001)])  # fmt: skip
def cache_every_1000th(key, value, key_cache, value_cache, slots):
    """Each thousandth call writes nothing."""
    _written[0] += 1
    if _written[0] % 1000:
        base.reshape_and_cache(key, value, key_cache, value_cache, slots)


_written = [0]
