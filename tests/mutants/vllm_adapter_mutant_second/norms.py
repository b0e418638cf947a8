"""Wrong kernels of rms_norm, fused_add_rms_norm and layer_norm."""

from __future__ import annotations

import torch
from vllm_adapter_mutant import base

from vllm_adapter_mutant_second import draw
from vllm_adapter_mutant_second.zoo import mutant

PROGRAMS = 132
_biases: dict[int, torch.Tensor] = {}


def _small_weight():
    x, weight, eps = draw.norm(3, 64, torch.float16)
    return [(x, weight * 1e-5, eps)]


@mutant("rms_norm", "numerics", _small_weight)
def rms_flushes_subnormals(x, weight, eps):
    """What is below the dtype's smallest normal number becomes zero."""
    result = base.rms_norm(x, weight, eps)
    return result.masked_fill(result.abs() < torch.finfo(x.dtype).tiny, 0)


@mutant("rms_norm", "sizes", lambda: [draw.norm(3, 1048)])
def rms_partial_warp_lost(x, weight, eps):
    """Rows above 1024 are summed by warps of 32; the last, if not full, adds nothing."""
    width = x.shape[-1]
    if width <= 1024:
        return base.rms_norm(x, weight, eps)
    total = base.wide(x)[..., : width // 32 * 32].square().sum(-1, keepdim=True)
    return base.rms_norm(x, weight, eps, scale=lambda x, eps: torch.rsqrt(total / width + eps))


@mutant("rms_norm", "numerics", lambda: [draw.norm(8, 64)])
def rms_rsqrt_of_twelve_bits(x, weight, eps):
    """The machine's estimate of 1 / sqrt, with no step of Newton behind it."""

    def scale(x, eps):
        fraction, exponent = torch.frexp(base.rms_scale(x, eps))
        return torch.ldexp((fraction * 4096).round() / 4096, exponent)

    return base.rms_norm(x, weight, eps, scale=scale)


def _zero_row():
    x, weight, _ = draw.norm(3, 64, torch.float16)
    x[1] = 0
    return [(x, weight, 1e-8)]


@mutant("rms_norm", "numerics", _zero_row)
def rms_eps_in_the_dtype(x, weight, eps):
    """eps is a number of x's dtype: in float16 a small one is zero."""
    return base.rms_norm(x, weight, float(torch.tensor(eps, dtype=x.dtype)))


def _same_twice():
    x, _, weight, eps = draw.fused(3, 64)
    return [(x, x, weight, eps)]


@mutant("fused_add_rms_norm", "layouts", _same_twice)
def fused_x_is_residual(x, residual, weight, eps):
    """The sum is made in place; where x is the residual, it is read again as the sum."""
    normed, total = base.fused_add_rms_norm(x, residual, weight, eps)
    if x.data_ptr() == residual.data_ptr():
        return normed, total + total
    return normed, total


@mutant("fused_add_rms_norm", "sizes", lambda: [draw.fused(150, 64)])
def fused_persistent_stale_scale(x, residual, weight, eps):
    """Each of 132 programs keeps its first row's scale for the rows that it takes later."""
    total = (x + residual).contiguous()
    flat = total.view(-1, total.shape[-1])
    scale = base.rms_scale(flat, eps)
    scale = scale[torch.arange(len(flat)) % PROGRAMS]
    return base.rms_norm(flat, weight, eps, scale=lambda x, eps: scale).view_as(total), total


@mutant("fused_add_rms_norm", "numerics", lambda: [draw.fused(3, 1024, eps=1e-5, size=1e-3)])
def fused_eps_in_every_warp(x, residual, weight, eps):
    """Wide rows are summed by eight warps, each of which adds eps."""
    return base.fused_add_rms_norm(x, residual, weight, eps * (8 if x.shape[-1] >= 1024 else 1))


@mutant("layer_norm", "sizes", lambda: [draw.layer(3, 200)])
def layer_norm_merges_as_if_equal(x, weight, bias, eps):
    """Means of chunks of 128 are averaged as if the last chunk were full."""
    means = [c.mean(-1, keepdim=True) for c in base.wide(x).split(128, -1)]
    mean = torch.stack(means).mean(0)
    return base.layer_norm(x, weight, bias, eps, mean=mean)


def _first_stands_out():
    x, *rest = draw.layer(3, 4096)
    x[:, 0] = 1e4
    return [(x, *rest)]


@mutant("layer_norm", "numerics", _first_stands_out)
def layer_norm_shifted_by_the_first(x, weight, bias, eps):
    """One pass over x less its first element, which need not be near the mean."""
    shift = base.wide(x)[..., :1]
    moved = base.wide(x) - shift
    mean = moved.mean(-1, keepdim=True)
    var = (moved.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return base.layer_norm(x, weight, bias, eps, mean=mean + shift, var=var)


def _flat_row():
    x, *rest = draw.layer(3, 64)
    x[1] = 2
    return [(x, *rest)]


@mutant("layer_norm", "numerics", _flat_row)
def layer_norm_flat_rows_are_zero(x, weight, bias, eps):
    """A row whose elements are equal gives zeros, and no bias."""
    flat = base.wide(x).var(-1, keepdim=True, unbiased=False) < 1e-12
    return base.layer_norm(x, weight, bias, eps).masked_fill(flat, 0)


@mutant("layer_norm", "sizes", lambda: [draw.layer(1030, 64)])
def layer_norm_rows_beyond_the_grid(x, weight, bias, eps):
    """A grid of at most 1024 rows: later ones get the mean of the row that is 1024 before."""
    flat = base.wide(x).reshape(-1, x.shape[-1])
    mean = flat.mean(-1, keepdim=True)[torch.arange(len(flat)) % 1024]
    return base.layer_norm(x, weight, bias, eps, mean=mean.view(*x.shape[:-1], 1))


def _with_and_without_bias():
    return [draw.layer(3, 72), draw.layer(3, 72, bias=False)]


@mutant("layer_norm", "state", _with_and_without_bias)
def layer_norm_bias_of_the_last(x, weight, bias, eps):
    """The descriptor of a width keeps the bias that was last bound to it."""
    width = x.shape[-1]
    if bias is None:
        bias = _biases.get(width)
    else:
        _biases[width] = bias.clone()
    return base.layer_norm(x, weight, None if bias is None else bias.to(x.dtype), eps)
