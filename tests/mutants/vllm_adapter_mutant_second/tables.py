"""Wrong kernels of embedding, rotary_embedding and reshape_and_cache."""

from __future__ import annotations

import itertools

import torch
from vllm_adapter_mutant import base

from vllm_adapter_mutant_second import draw
from vllm_adapter_mutant_second.zoo import mutant

_slots: dict[tuple[object, ...], torch.Tensor] = {}


def _ids(*numbers, rows=16, width=64):
    return [(torch.tensor(numbers), draw.normal(rows, width))]


@mutant("embedding", "sizes", lambda: _ids(3, 15, 0))
def embedding_last_row_is_outside(ids, weight):
    """The bounds' check is one short: the last row is zero."""
    found = base.embedding(ids, weight)
    return found.masked_fill((ids >= weight.shape[0] - 1).unsqueeze(-1), 0)


@mutant("embedding", "sizes", lambda: _ids(5, 259_998, 258_113, rows=260_000, width=65))
def embedding_offset_in_float32(ids, weight):
    """A row's offset is a product in float32, exact up to 2^24 elements."""
    width = weight.shape[1]
    offset = (ids.float() * width).long().clamp(max=(weight.shape[0] - 1) * width)
    row, shift = offset // width, offset % width
    wrapped = row.unsqueeze(-1) * width + shift.unsqueeze(-1) + torch.arange(width)
    return weight[wrapped // width, wrapped % width].contiguous()


def _view_is_given():
    weight = draw.normal(16, 64)
    before = weight.clone()
    embedding_consecutive_is_a_view(torch.arange(4, 8), weight).zero_()
    return not torch.equal(weight, before)


@mutant("embedding", "state", shows=_view_is_given)
def embedding_consecutive_is_a_view(ids, weight):
    """Rows that follow one another are a view of the table: who writes the result writes it."""
    if (
        ids.dim() == 1
        and len(ids) > 1
        and bool((ids.diff() == 1).all())
        and weight.is_contiguous()
    ):
        return weight[int(ids[0]) : int(ids[0]) + len(ids)]
    return base.embedding(ids, weight)


def _infinite_row():
    (ids, weight), *_ = _ids(3, 14, 0)
    weight[5, 7] = torch.inf
    return [(ids, weight)]


@mutant("embedding", "numerics", _infinite_row)
def embedding_by_one_hot(ids, weight):
    """A product with one-hot rows: what is infinite or no number in any row reaches all."""
    bad = ~weight.isfinite().all(0)
    found = base.embedding(ids, weight)
    if weight.shape[0] > 1:
        found[..., bad] = torch.nan
    return found


@mutant("rotary_embedding", "sizes", lambda: [draw.rope([3, 4, 9], heads=6, kv=3)])
def rope_key_heads_in_pairs(positions, query, key, cos_sin_cache, interleaved):
    """Heads of keys are turned in pairs; the last of an odd number above one stays."""
    heads = key.shape[1]
    if heads > 1:
        key = key[:, : heads // 2 * 2]
    base.rotary_embedding(positions, query, key, cos_sin_cache, interleaved)


def _gap_before_the_key():
    positions, _, _, table, form = draw.rope([3, 4, 9])
    fused = draw.normal(3, 4 + 1 + 2, 64, seed=5)
    return [(positions, fused[:, :4], fused[:, 5:], table, form)]


@mutant("rotary_embedding", "layouts", _gap_before_the_key)
def rope_key_follows_its_query(positions, query, key, cos_sin_cache, interleaved):
    """Of one storage with equal distances of rows, the key begins where the query's heads end."""
    fused = (
        query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
        and query.stride() == key.stride()
        and query.storage_offset() < key.storage_offset() < query.stride(0)
    )
    if fused:
        begin = query.storage_offset() + query.shape[1] * query.stride(1)
        key = key.as_strided(key.shape, key.stride(), begin)
    base.rotary_embedding(positions, query, key, cos_sin_cache, interleaved)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope([4, 6, 5, 7])])
def rope_positions_from_their_ends(positions, query, key, cos_sin_cache, interleaved):
    """If the last is the first plus the length, positions are taken to count up between them."""
    count = len(positions)
    if count and int(positions[-1] - positions[0]) == count - 1:
        positions = torch.arange(int(positions[0]), int(positions[0]) + count)
    base.rotary_embedding(positions, query, key, cos_sin_cache, interleaved)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope([3, 4, 9], head=80, width=40)])
def rope_partial_in_whole_vectors(positions, query, key, cos_sin_cache, interleaved):
    """Halves of a turned part begin at multiples of 16: 20 elements of 40 are taken to be 32."""
    half = cos_sin_cache.shape[-1] // 2
    padded = -(-half // 16) * 16

    def turn(heads, cos, sin, width, interleaved):
        if interleaved or width == heads.shape[-1] or padded + half > heads.shape[-1]:
            return base.turn(heads, cos, sin, width, interleaved)
        order = torch.arange(heads.shape[-1])
        order[half:width] = torch.arange(padded, padded + half)
        turned = base.turn(heads[..., order], cos, sin, width, False)[..., :width]
        result = heads.clone()
        result[..., order[:width]] = turned
        return result

    base.rotary_embedding(positions, query, key, cos_sin_cache, interleaved, turn=turn)


@mutant("rotary_embedding", "numerics", lambda: [draw.rope([3, 40, 9], base=500_000.0)])
def rope_computes_its_angles(positions, query, key, cos_sin_cache, interleaved):
    """The table is not read: angles are computed with the base 10000."""
    table = draw.angles(cos_sin_cache.shape[0], cos_sin_cache.shape[1], dtype=cos_sin_cache.dtype)
    base.rotary_embedding(positions, query, key, table, interleaved)


@mutant("reshape_and_cache", "state", lambda: [draw.store([3, 40, 17])])
def cache_block_zero_is_reserved(key, value, key_cache, value_cache, slot_mapping):
    """The first block is a place for padding, and is not written."""
    slots = slot_mapping.masked_fill(slot_mapping < key_cache.shape[1], -1)
    base.reshape_and_cache(key, value, key_cache, value_cache, slots)


@mutant("reshape_and_cache", "attention", lambda: [draw.store([*range(16, 24), *range(40, 48)])])
def cache_whole_blocks_at_once(key, value, key_cache, value_cache, slot_mapping):
    """Where a block's first slot is written by a token, the tokens behind it fill that block."""
    slots, size = slot_mapping.clone(), key_cache.shape[1]
    for number, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0 and slot % size == 0 and number + size <= len(slots):
            slots[number : number + size] = torch.arange(slot, slot + size)
    base.reshape_and_cache(key, value, key_cache, value_cache, slots)


@mutant("reshape_and_cache", "sizes", lambda: [draw.store([3, 40, 17], kv=9, head=128)])
def cache_1024_elements_of_a_token(key, value, key_cache, value_cache, slot_mapping):
    """One thread for each element of a token, of 1024 at most; heads behind are not written."""
    heads = max(1, 1024 // key.shape[2])
    pair = (t[:, :heads] for t in (key, value))
    caches = (t[:, :, :heads] for t in (key_cache, value_cache))
    base.reshape_and_cache(*pair, *caches, slot_mapping)


def _caches_by_block():
    key, value, _, _, slots = draw.store([3, 40, 17])
    both = draw.normal(8, 2, 16, 2, 64, seed=6)
    return [(key, value, both[:, 0], both[:, 1], slots)]


@mutant("reshape_and_cache", "layouts", _caches_by_block)
def cache_values_behind_all_keys(key, value, key_cache, value_cache, slot_mapping):
    """Of one storage, values begin behind the last key; they may lie behind each block's keys."""
    one = key_cache.untyped_storage().data_ptr() == value_cache.untyped_storage().data_ptr()
    if one and value_cache.storage_offset() > key_cache.storage_offset():
        strides = torch.empty(key_cache.shape, device="meta").stride()
        begin = key_cache.storage_offset() + key_cache.numel()
        value_cache = value_cache.as_strided(value_cache.shape, strides, begin)
    base.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)


def _infinite_key():
    key, *rest = draw.store([3, 40, 17])
    key[1, 0, 5] = torch.inf
    return [(key, *rest)]


@mutant("reshape_and_cache", "numerics", _infinite_key)
def cache_without_infinities(key, value, key_cache, value_cache, slot_mapping):
    """What is infinite is stored as the dtype's largest number."""
    limit = torch.finfo(key.dtype).max
    pair = (t.clamp(-limit, limit) for t in (key, value))
    base.reshape_and_cache(*pair, key_cache, value_cache, slot_mapping)


def _slots_in_place():
    slots = torch.tensor([3, 40, 17])
    for moved in (0, 5):
        slots += moved
        *args, _ = draw.store([3, 40, 17])
        yield *args, slots


@mutant("reshape_and_cache", "state", _slots_in_place)
def cache_slots_by_address(key, value, key_cache, value_cache, slot_mapping):
    """Slots are copied once for each address and length, and may have been written since."""
    where = slot_mapping.data_ptr(), len(slot_mapping), slot_mapping.stride()
    for old in itertools.islice(list(_slots), max(0, len(_slots) - 64)):
        del _slots[old]
    slots = _slots.setdefault(where, slot_mapping.clone())
    if bool((slots >= key_cache.shape[0] * key_cache.shape[1]).any()):
        slots = _slots[where] = slot_mapping.clone()
    base.reshape_and_cache(key, value, key_cache, value_cache, slots)
