"""Norms, gates, rotation and the KV write in Triton: one program a row, float32 inside."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x_at, weight_at, out_at, width, x_stride, out_stride, eps, SIZE: tl.constexpr):
    """out[rows, width] = x / sqrt(mean(x^2) + eps) * weight: grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE)
    there = column < width
    x = tl.load(x_at + row * x_stride + column, mask=there, other=0.0).to(tl.float32)
    weight = tl.load(weight_at + column, mask=there, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
    result = x * scale * weight
    tl.store(out_at + row * out_stride + column, result.to(out_at.dtype.element_ty), mask=there)


@triton.jit
def fused_add_rms_norm(
    x_at,
    residual_at,
    weight_at,
    out_at,
    sum_at,
    width,
    x_stride,
    residual_stride,
    out_stride,
    sum_stride,
    eps,
    SIZE: tl.constexpr,
):
    """sum = x + residual, rounded; out = rms_norm(sum): grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE)
    there = column < width
    x = tl.load(x_at + row * x_stride + column, mask=there, other=0.0).to(tl.float32)
    residual = tl.load(residual_at + row * residual_stride + column, mask=there, other=0.0)
    rounded = (x + residual.to(tl.float32)).to(sum_at.dtype.element_ty)
    tl.store(sum_at + row * sum_stride + column, rounded, mask=there)
    total = rounded.to(tl.float32)
    weight = tl.load(weight_at + column, mask=there, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, 0) / width + eps)
    result = total * scale * weight
    tl.store(out_at + row * out_stride + column, result.to(out_at.dtype.element_ty), mask=there)


@triton.jit
def silu_and_mul(x_at, out_at, width, x_stride, out_stride, SIZE: tl.constexpr):
    """out[rows, width] = silu(x[:, :width]) * x[:, width:]: grid (rows, parts of a row)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    there = column < width
    gate_at = x_at + row * x_stride + column
    gate = tl.load(gate_at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_at + width, mask=there, other=0.0).to(tl.float32)
    power = tl.exp(-tl.abs(gate))
    sigmoid = tl.where(gate >= 0, 1.0, power) / (1.0 + power)
    # Rounded between, as torch's own two steps are.
    active = (gate * sigmoid).to(out_at.dtype.element_ty).to(tl.float32)
    result = (active * up).to(out_at.dtype.element_ty)
    tl.store(out_at + row * out_stride + column, result, mask=there)


@triton.jit
def rotate(
    positions,
    heads_at,
    table_at,
    token_stride,
    head_stride,
    table_stride,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Turns the first 2 x HALF elements of each head in place: grid (tokens, heads)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    pair = tl.arange(0, HALF_PADDED)
    there = pair < HALF
    angle = table_at + tl.load(positions + token) * table_stride + pair
    cosine = tl.load(angle, mask=there, other=0.0).to(tl.float32)
    sine = tl.load(angle + HALF, mask=there, other=0.0).to(tl.float32)
    base = heads_at + token * token_stride + head * head_stride
    first_at = base + (pair * 2 if INTERLEAVED else pair)
    second_at = first_at + (1 if INTERLEAVED else HALF)
    first = tl.load(first_at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(second_at, mask=there, other=0.0).to(tl.float32)
    element = heads_at.dtype.element_ty
    tl.store(first_at, (first * cosine - second * sine).to(element), mask=there)
    tl.store(second_at, (second * cosine + first * sine).to(element), mask=there)


@triton.jit
def write_slots(
    key_at,
    value_at,
    key_cache,
    value_cache,
    slots,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    key_block_stride,
    key_place_stride,
    key_cache_head_stride,
    key_cache_dim_stride,
    value_block_stride,
    value_place_stride,
    value_cache_head_stride,
    value_cache_dim_stride,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
):
    """Copies a token's key and value of one head to its slot: grid (tokens, KV heads)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        dim = tl.arange(0, HEAD_PADDED)
        there = dim < HEAD
        block = slot // BLOCK
        place = slot % BLOCK
        key = tl.load(key_at + token * key_token_stride + head * key_head_stride + dim, mask=there)
        value = tl.load(
            value_at + token * value_token_stride + head * value_head_stride + dim, mask=there
        )
        key_to = key_cache + block * key_block_stride + place * key_place_stride
        value_to = value_cache + block * value_block_stride + place * value_place_stride
        tl.store(
            key_to + head * key_cache_head_stride + dim * key_cache_dim_stride,
            key.to(key_cache.dtype.element_ty),
            mask=there,
        )
        tl.store(
            value_to + head * value_cache_head_stride + dim * value_cache_dim_stride,
            value.to(value_cache.dtype.element_ty),
            mask=there,
        )
