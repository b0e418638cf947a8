"""Products with weights in fewer bits, and rows rounded to floats of eight bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def round_rows(x_at, out_at, by_at, width, x_stride, most, least, SIZE: tl.constexpr):
    """out[rows, width] = x / by in out's float, by[rows] = max |x| / most: grid (rows).

    SIZE is not below the width. A row of zeros is divided by one of the smallest numbers. `most`
    and `least` are the largest and the smallest normal number of out's float, which has three
    bits of mantissa.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE)
    there = column < width
    x = tl.load(x_at + row * x_stride + column, mask=there, other=0.0).to(tl.float32)
    # A maximum may pass over what is no number; a sum does not.
    none = tl.sum(x * 0.0, 0)
    by = tl.maximum(tl.max(tl.abs(x), 0) / most, 1.1754943508222875e-38) + none
    scaled = tl.minimum(tl.maximum(x / by, -most), most) + none
    # Rounded to the nearest before the cast, which then is exact: casts of the devices, and of
    # the interpreter, do not round alike. Normal numbers by splitting, others by their step.
    split = scaled * 1048577.0
    normal = split - (split - scaled)
    shift = least * 1572864.0
    small = (scaled + shift) - shift
    rounded = tl.where(tl.abs(scaled) < least, small, normal)
    tl.store(out_at + row * width + column, rounded.to(out_at.dtype.element_ty), mask=there)
    tl.store(by_at + row, by)


@triton.jit
def product(
    x_at,
    weight_at,
    scale_at,
    zero_at,
    bias_at,
    by_at,
    out_at,
    rows,
    width,
    out_width,
    x_stride,
    weight_stride,
    groups,
    IS_INT4: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_BY: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[rows, out_width] = x @ (weight * scale + zero).T * by + bias: grid (tiles, tiles).

    One scale a row of the weight, or (IS_INT4) a scale and a zero point for GROUP inputs, which
    TILE_K is: then two values lie in a byte, the even one in the low half.
    """
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    out = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    inner = tl.arange(0, TILE_K)
    is_row = row < rows
    is_out = out < out_width
    x_row = x_at + row.to(tl.int64)[:, None] * x_stride
    weight_row = weight_at + out.to(tl.int64)[None, :] * weight_stride
    total = tl.zeros([TILE_M, TILE_N], tl.float32)
    for start in range(0, width, TILE_K):
        column = start + inner
        there = column < width
        x = tl.load(x_row + column[None, :], mask=is_row[:, None] & there[None, :], other=0.0)
        mask = there[:, None] & is_out[None, :]
        if IS_INT4:
            byte = tl.load(weight_row + (column // 2)[:, None], mask=mask, other=0)
            value = tl.where((column % 2)[:, None] == 0, byte & 15, byte >> 4).to(tl.float32)
            at = out.to(tl.int64) * groups + start // GROUP
            scale = tl.load(scale_at + at, mask=is_out, other=0.0)
            zero = tl.load(zero_at + at, mask=is_out, other=0.0)
            weight = tl.where(mask, value * scale[None, :] + zero[None, :], 0.0)
        else:
            weight = tl.load(weight_row + column[:, None], mask=mask, other=0.0)
        if HAS_BY:
            # Both are floats of eight bits, whose units take them as they are.
            total = tl.dot(x, weight, total)
        else:
            total = tl.dot(x, weight.to(x.dtype), total, input_precision=PRECISION)
    if not IS_INT4:
        total *= tl.load(scale_at + out, mask=is_out, other=0.0)[None, :]
    if HAS_BY:
        total *= tl.load(by_at + row, mask=is_row, other=0.0)[:, None]
    if HAS_BIAS:
        total += tl.load(bias_at + out, mask=is_out, other=0.0).to(tl.float32)[None, :]
    place = out_at + row.to(tl.int64)[:, None] * out_width + out[None, :]
    tl.store(place, total.to(out_at.dtype.element_ty), mask=is_row[:, None] & is_out[None, :])
