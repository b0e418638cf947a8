"""Paged attention in Triton: tiles of queries over parts of their contexts, then their sum.

A work item is one row of `items`, int32[ITEM_FIELDS]; see `attention_plan`. Rows of a tile are its
tokens times the query heads that share a KV head, so that a tensor core is as full as the group
allows, at any ratio.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _bounded(scores, cap):
    """cap * tanh(scores / cap), exact also where scores are far below the cap."""
    x = scores / cap
    square = x * x
    near = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    wide = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(tl.abs(x), 20.0)) + 1.0)
    return cap * tl.where(square < 0.01, near, tl.where(x < 0, -wide, wide))


@triton.jit
def _one_tile(
    query,
    peak,
    total,
    result,
    start,
    stop,
    last,
    key_base,
    value_base,
    table_row,
    key_block_stride,
    key_token_stride,
    key_dim_stride,
    value_block_stride,
    value_token_stride,
    value_dim_stride,
    scale,
    soft_cap,
    window,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_N: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds the slots from `start` to the running softmax of a tile.

    Without IS_MASKED every slot is seen by every row, and all of them are before `stop`.
    """
    slot = start + tl.arange(0, TILE_N)
    dim = tl.arange(0, HEAD_PADDED)
    is_dim = dim < HEAD
    if IS_MASKED:
        there = slot < stop
        block = tl.load(table_row + slot // BLOCK, mask=there, other=0).to(tl.int64)
    else:
        block = tl.load(table_row + slot // BLOCK).to(tl.int64)
    place = slot % BLOCK
    keys_at = (key_base + block * key_block_stride + place * key_token_stride)[None, :]
    keys_at += (dim * key_dim_stride)[:, None]
    values_at = (value_base + block * value_block_stride + place * value_token_stride)[:, None]
    values_at += (dim * value_dim_stride)[None, :]
    if IS_MASKED:
        keys = tl.load(keys_at, mask=is_dim[:, None] & there[None, :], other=0.0)
        values = tl.load(values_at, mask=is_dim[None, :] & there[:, None], other=0.0)
    elif HEAD == HEAD_PADDED:
        keys = tl.load(keys_at)
        values = tl.load(values_at)
    else:
        keys = tl.load(keys_at, mask=is_dim[:, None], other=0.0)
        values = tl.load(values_at, mask=is_dim[None, :], other=0.0)
    keys = keys.to(query.dtype)
    values = values.to(query.dtype)
    scores = tl.dot(query, keys, input_precision=PRECISION) * scale
    if HAS_CAP:
        scores = _bounded(scores, soft_cap)
    scores *= LOG2_E
    if IS_MASKED:
        seen = (slot[None, :] <= last[:, None]) & there[None, :]
        if HAS_WINDOW:
            seen = seen & (last[:, None] - slot[None, :] < window)
        scores = tl.where(seen, scores, float("-inf"))
    highest = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen nothing yet keeps 0 as its peak: -inf less -inf is no number.
    finite = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - finite[:, None])
    factor = tl.exp2(peak - finite)
    total = total * factor + tl.sum(weights, 1)
    result = result * factor[:, None]
    result = tl.dot(weights.to(values.dtype), values, result, input_precision=PRECISION)
    return highest, total, result


@triton.jit
def attend(
    query_at,
    key_cache,
    value_cache,
    block_table,
    out_at,
    items,
    partial_result,
    partial_peak,
    partial_total,
    scale,
    soft_cap,
    window,
    query_token_stride,
    query_head_stride,
    query_dim_stride,
    key_block_stride,
    key_token_stride,
    key_head_stride,
    key_dim_stride,
    value_block_stride,
    value_token_stride,
    value_head_stride,
    value_dim_stride,
    table_stride,
    out_token_stride,
    out_head_stride,
    kv_heads,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """One item and one KV head: grid (kv_heads, items). An item without tokens does nothing."""
    head = tl.program_id(0)
    item = items + tl.program_id(1) * FIELDS
    sequence = tl.load(item)
    first_token = tl.load(item + 1).to(tl.int64)
    tokens = tl.load(item + 2)
    position = tl.load(item + 3)
    start = tl.load(item + 4)
    stop = tl.load(item + 5)
    partial = tl.load(item + 6)
    if tokens > 0:
        row = tl.arange(0, TILE_M)
        dim = tl.arange(0, HEAD_PADDED)
        token = row // GROUP
        query_head = head * GROUP + row % GROUP
        is_row = token < tokens
        mask = is_row[:, None] & (dim < HEAD)[None, :]
        query = tl.load(
            query_at
            + (first_token + token)[:, None] * query_token_stride
            + query_head[:, None] * query_head_stride
            + dim[None, :] * query_dim_stride,
            mask=mask,
            other=0.0,
        )
        # Rows that pad the tile see what its first token sees.
        last = position + tl.where(is_row, token, 0)
        key_base = key_cache + head.to(tl.int64) * key_head_stride
        value_base = value_cache + head.to(tl.int64) * value_head_stride
        table_row = block_table + sequence.to(tl.int64) * table_stride
        peak = tl.full([TILE_M], float("-inf"), tl.float32)
        total = tl.zeros([TILE_M], tl.float32)
        result = tl.zeros([TILE_M, HEAD_PADDED], tl.float32)

        # Slots that every row sees come in the middle: no masks there.
        clear_start = start
        if HAS_WINDOW:
            first_seen_by_all = tl.maximum(position + tokens - window, start)
            clear_start = start + (first_seen_by_all - start + TILE_N - 1) // TILE_N * TILE_N
            clear_start = tl.minimum(clear_start, stop)
        clear_stop = tl.minimum(stop, position + 1)
        clear_stop = clear_start + tl.maximum(clear_stop - clear_start, 0) // TILE_N * TILE_N
        if HAS_WINDOW:
            for at in range(start, clear_start, TILE_N):
                peak, total, result = _one_tile(
                    query, peak, total, result, at, stop, last, key_base, value_base, table_row,
                    key_block_stride, key_token_stride, key_dim_stride,
                    value_block_stride, value_token_stride, value_dim_stride,
                    scale, soft_cap, window, HEAD, HEAD_PADDED, BLOCK, TILE_N,
                    HAS_CAP, HAS_WINDOW, True, PRECISION,
                )  # fmt: skip
        for at in range(clear_start, clear_stop, TILE_N):
            peak, total, result = _one_tile(
                query, peak, total, result, at, stop, last, key_base, value_base, table_row,
                key_block_stride, key_token_stride, key_dim_stride,
                value_block_stride, value_token_stride, value_dim_stride,
                scale, soft_cap, window, HEAD, HEAD_PADDED, BLOCK, TILE_N,
                HAS_CAP, HAS_WINDOW, False, PRECISION,
            )  # fmt: skip
        for at in range(clear_stop, stop, TILE_N):
            peak, total, result = _one_tile(
                query, peak, total, result, at, stop, last, key_base, value_base, table_row,
                key_block_stride, key_token_stride, key_dim_stride,
                value_block_stride, value_token_stride, value_dim_stride,
                scale, soft_cap, window, HEAD, HEAD_PADDED, BLOCK, TILE_N,
                HAS_CAP, HAS_WINDOW, True, PRECISION,
            )  # fmt: skip

        if partial < 0:
            place = (
                out_at
                + (first_token + token)[:, None] * out_token_stride
                + query_head[:, None] * out_head_stride
                + dim[None, :]
            )
            tl.store(place, (result / total[:, None]).to(out_at.dtype.element_ty), mask=mask)
        else:
            at_row = (partial.to(tl.int64) * kv_heads + head) * TILE_M + row
            tl.store(partial_result + at_row[:, None] * HEAD + dim[None, :], result, mask=mask)
            tl.store(partial_peak + at_row, peak, mask=is_row)
            tl.store(partial_total + at_row, total, mask=is_row)


@triton.jit
def combine(
    out_at,
    groups,
    partial_result,
    partial_peak,
    partial_total,
    out_token_stride,
    out_head_stride,
    kv_heads,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    TILE_M: tl.constexpr,
    PARTS: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """One row of one tile that was split: grid (rows of a tile, kv_heads, tiles)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    group = groups + tl.program_id(2) * FIELDS
    first_token = tl.load(group).to(tl.int64)
    tokens = tl.load(group + 1)
    first = tl.load(group + 2).to(tl.int64)
    count = tl.load(group + 3)
    if row < tokens * GROUP:
        dim = tl.arange(0, HEAD_PADDED)
        is_dim = dim < HEAD
        part = tl.arange(0, PARTS)
        peak = float("-inf")
        total = 0.0
        result = tl.zeros([HEAD_PADDED], tl.float32)
        for at in range(0, count, PARTS):
            there = at + part < count
            rows = ((first + at + part) * kv_heads + head) * TILE_M + row
            peaks = tl.load(partial_peak + rows, mask=there, other=float("-inf"))
            totals = tl.load(partial_total + rows, mask=there, other=0.0)
            results = tl.load(
                partial_result + rows[:, None] * HEAD + dim[None, :],
                mask=there[:, None] & is_dim[None, :],
                other=0.0,
            )
            highest = tl.maximum(peak, tl.max(peaks, 0))
            finite = tl.where(highest == float("-inf"), 0.0, highest)
            factors = tl.exp2(peaks - finite)
            before = tl.exp2(peak - finite)
            total = total * before + tl.sum(totals * factors, 0)
            result = result * before + tl.sum(results * factors[:, None], 0)
            peak = highest
        token = first_token + row // GROUP
        place = out_at + token * out_token_stride
        place += (head * GROUP + row % GROUP) * out_head_stride
        tl.store(place + dim, (result / total).to(out_at.dtype.element_ty), mask=is_dim)
