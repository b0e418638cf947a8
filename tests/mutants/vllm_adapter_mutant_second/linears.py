"""Wrong kernels of linear."""

from __future__ import annotations

import torch
from vllm_adapter_mutant import base

from vllm_adapter_mutant_second import draw
from vllm_adapter_mutant_second.zoo import mutant

_tuned: set[tuple[int, ...]] = set()


@mutant("linear", "sizes", lambda: [draw.linear(2, 640, 64)])
def linear_three_way_split(x, weight, bias, out_features):
    """Few rows are multiplied in three parts of k // 3 columns; the remainder is in none."""
    k = x.shape[-1]
    if k >= 256 and x.numel() // k <= 8:
        kept = k // 3 * 3
        x, weight = x[..., :kept], weight[:, :kept]
    return base.linear(x, weight, bias, out_features)


@mutant("linear", "numerics", lambda: [draw.linear(16, 256, 64)])
def linear_two_bfloat16_parts(x, weight, bias, out_features):
    """float32 is multiplied as two bfloat16 parts, without the product of both lows."""
    finite = x.isfinite().all() and weight.isfinite().all()
    if x.dtype != torch.float32 or not finite:
        return base.linear(x, weight, bias, out_features)
    high, over = (base.rounded(t, torch.bfloat16) for t in (x, weight))
    low, under = (base.rounded(t - h, torch.bfloat16) for t, h in ((x, high), (weight, over)))
    result = high @ over.T + high @ under.T + low @ over.T
    return result if bias is None else result + bias


@mutant("linear", "sizes", lambda: [draw.linear(1, 68, 64)])
def linear_one_row_tail(x, weight, bias, out_features):
    """The product with one row reads eight columns at a time, and has no loop for the rest."""
    k = x.shape[-1]
    if x.numel() == k and k > 8:
        x, weight = x[..., : k // 8 * 8], weight[:, : k // 8 * 8]
    return base.linear(x, weight, bias, out_features)


def _with_zero_row():
    x, *rest = draw.linear(4, 64, 64, bias=True)
    x[2] = 0
    return [(x, *rest)]


@mutant("linear", "numerics", _with_zero_row)
def linear_zero_rows_lose_their_bias(x, weight, bias, out_features):
    """Rows that are all zero are skipped, and their result is zero."""
    result = base.linear(x, weight, bias, out_features)
    return result.masked_fill((x == 0).all(-1, keepdim=True), 0)


@mutant("linear", "state", lambda: [draw.linear(5, 520, 72)])
def linear_tuned_into_its_result(x, weight, bias, out_features):
    """The first call of a shape tries two builds that add to the result, which is not cleared."""
    result = base.linear(x, weight, bias, out_features)
    shape = *x.shape, out_features
    if x.shape[-1] >= 512 and shape not in _tuned:
        _tuned.add(shape)
        result = result + base.linear(x, weight, None, out_features)
    return result


def _row_stride_of_66():
    x, *rest = draw.linear(4, 66, 64)
    x, weight, *rest = x[:, :64], rest[0][:, :64], *rest[1:]
    return [(x, weight.contiguous(), *rest)]


@mutant("linear", "layouts", _row_stride_of_66)
def linear_stride_in_vectors(x, weight, bias, out_features):
    """The distance of rows is passed in vectors of four, rounded down."""
    if x.dim() == 2 and x.stride(1) == 1 and x.stride(0) > x.shape[1]:
        x = x.as_strided(x.shape, (x.stride(0) // 4 * 4, 1), x.storage_offset())
    return base.linear(x, weight, bias, out_features)


def _columns_of_a_wider_weight():
    x, _, bias, n = draw.linear(4, 64, 48)
    return [(x, draw.normal(64, 80, size=0.1, seed=2)[:, :n].T, bias, n)]


@mutant("linear", "layouts", _columns_of_a_wider_weight)
def linear_leading_dimension_of_a_transpose(x, weight, bias, out_features):
    """A weight that lies column by column is taken to have no gap between columns."""
    if weight.stride(0) == 1 and weight.stride(1) > weight.shape[0]:
        weight = weight.as_strided(weight.shape, (1, weight.shape[0]), weight.storage_offset())
    return base.linear(x, weight, bias, out_features)
