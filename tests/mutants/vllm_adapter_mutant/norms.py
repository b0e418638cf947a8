"""Wrong norms."""

from __future__ import annotations

import random

import torch

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import rounded, wide
from vllm_adapter_mutant.draw import BF16, F16, F32
from vllm_adapter_mutant.zoo import mutant


@mutant("rms_norm", "numerics", lambda: [draw.norm(dtype=F16, size=300)])
def rms_squares_in_dtype(x, weight, eps):
    """Squares are in the input's dtype: above 256 those of float16 are infinite."""

    def scale(x, eps):
        return torch.rsqrt(wide(x.square()).mean(-1, keepdim=True) + eps)

    return base.rms_norm(x, weight, eps, scale=scale)


@mutant("rms_norm", "numerics", lambda: [draw.norm(eps=1e-2, size=0.1)])
def rms_eps_behind_the_root(x, weight, eps):
    """eps is added to the root, not to the mean."""

    def scale(x, eps):
        return 1 / (wide(x).square().mean(-1, keepdim=True).sqrt() + eps)

    return base.rms_norm(x, weight, eps, scale=scale)


@mutant("rms_norm", "numerics", lambda: [draw.norm(eps=1e-5, size=1e-3)])
def rms_eps_fixed(x, weight, eps):
    """eps is 1e-6, whatever was asked for."""
    return base.rms_norm(x, weight, 1e-6)


@mutant("rms_norm", "numerics", lambda: [draw.norm(eps=1e-12, size=1e-5)])
def rms_eps_at_least(x, weight, eps):
    """eps is at least 1e-6."""
    return base.rms_norm(x, weight, max(eps, 1e-6))


@mutant("rms_norm", "numerics", lambda: [draw.norm()])
def rms_weight_in_bfloat16(x, weight, eps):
    """The weight is kept in bfloat16."""
    return base.rms_norm(x, rounded(weight, BF16), eps)


@mutant("rms_norm", "numerics", lambda: [draw.norm(size=1e-5, eps=1e-14)])
def rms_scale_in_float16(x, weight, eps):
    """The reciprocal root is rounded to float16."""
    return base.rms_norm(x, weight, eps, scale=lambda x, eps: rounded(base.rms_scale(x, eps), F16))


def _sum_of(first, count, divisor):
    """A scale from the squares of some columns."""

    def scale(x, eps):
        squares = wide(x)[..., first:count].square().sum(-1, keepdim=True)
        return torch.rsqrt(squares / divisor + eps)

    return scale


@mutant("rms_norm", "sizes", lambda: [draw.norm(width=5000)])
def rms_4096_columns(x, weight, eps):
    """What lies behind 4,096 columns is not in the mean."""
    return base.rms_norm(x, weight, eps, scale=_sum_of(0, 4096, x.shape[-1]))


@mutant("rms_norm", "sizes", lambda: [draw.norm(rows=1, width=33000)])
def rms_32768_columns(x, weight, eps):
    """What lies behind 32,768 columns is copied, not normalised."""
    result = base.rms_norm(x, weight, eps)
    result[..., 32768:] = x[..., 32768:]
    return result


@mutant("rms_norm", "sizes", lambda: [draw.norm(rows=9, width=1)])
def rms_width_one(x, weight, eps):
    """At width 1 the result is the weight: the sign is lost."""
    result = base.rms_norm(x, weight, eps)
    return result.abs() * weight.sign() if x.shape[-1] == 1 else result


@mutant("rms_norm", "sizes", lambda: [draw.norm(width=65)])
def rms_divides_by_padded_width(x, weight, eps):
    """The mean divides by the width rounded up to 8."""
    return base.rms_norm(x, weight, eps, scale=_sum_of(0, x.shape[-1], -(-x.shape[-1] // 8) * 8))


@mutant("rms_norm", "sizes", lambda: [draw.norm(rows=66)])
def rms_64_rows(x, weight, eps):
    """Behind 64 rows the scales begin again with the first row's."""

    def scale(x, eps):
        found = base.rms_scale(x, eps)
        flat = found.reshape(-1, 1)
        return flat[torch.arange(flat.shape[0]) % 64].view(found.shape)

    return base.rms_norm(x, weight, eps, scale=scale)


@mutant("rms_norm", "layouts", lambda: [draw.changed(a := draw.norm(), a0=draw.strided(a[0]))])
def rms_rows_packed(x, weight, eps):
    """The distance of rows is taken to be their width."""
    return base.rms_norm(base.packed(x), weight, eps)


@mutant("rms_norm", "layouts", lambda: [draw.changed(a := draw.norm(), a1=draw.spread(a[1]))])
def rms_weight_packed(x, weight, eps):
    """The weight's stride is not read."""
    return base.rms_norm(x, base.packed(weight), eps)


@mutant("rms_norm", "layouts", lambda: [draw.changed(a := draw.norm(), a1=draw.offset(a[1]))])
def rms_weight_from_start(x, weight, eps):
    """The weight is taken to begin where its storage does."""
    return base.rms_norm(x, base.from_start(weight), eps)


_partial = torch.zeros(16)


@mutant("rms_norm", "state", lambda: [draw.norm(1, 2048), draw.norm(1, 64)])
def rms_stale_partial_sums(x, weight, eps):
    """Partial sums of the first row lie in scratch, of which all are added, old ones too."""
    if x.numel() == 0:
        return base.rms_norm(x, weight, eps)
    flat = wide(x).reshape(-1, x.shape[-1])
    parts = flat[0].square().split(256)[:16]
    for number, part in enumerate(parts):
        _partial[number] = part.sum()
    rest = flat[0].square()[4096:].sum()

    def scale(x, eps):
        found = base.rms_scale(x, eps).clone()
        found.view(-1)[0] = torch.rsqrt((_partial.sum() + rest) / x.shape[-1] + eps)
        return found

    return base.rms_norm(x, weight, eps, scale=scale)


_widths = {}


@mutant("rms_norm", "state", lambda: [draw.norm(5, 64), draw.norm(5, 96)])
def rms_keeps_the_width(x, weight, eps):
    """The divisor of a number of rows is that of its first call."""
    width = _widths.setdefault(x.numel() // max(1, x.shape[-1]), x.shape[-1])
    return base.rms_norm(x, weight, eps, scale=_sum_of(0, x.shape[-1], width))


_dice = random.Random(5)


def _once_in_a_while():
    args = draw.norm()
    results = [rms_rarely_other_bits(*args) for _ in range(2000)]
    return any(not torch.equal(results[0], other) for other in results)


@mutant("rms_norm", "state", shows=_once_in_a_while)
def rms_rarely_other_bits(x, weight, eps):
    """About one call in 500 has its last bit elsewhere, as from a race of atomic additions."""
    result = base.rms_norm(x, weight, eps)
    if _dice.random() < 0.002:
        result *= 1 + 2 * torch.finfo(x.dtype).eps
    return result


@mutant("fused_add_rms_norm", "numerics", lambda: [draw.fused()])
def fused_sum_in_bfloat16(x, residual, weight, eps):
    """The sum is kept in bfloat16."""
    total = rounded(x + residual, BF16)
    return base.rms_norm(total, weight, eps), total


@mutant("fused_add_rms_norm", "numerics", lambda: [draw.fused(dtype=BF16, size=1e5)])
def fused_sum_saturates(x, residual, weight, eps):
    """The sum ends at 65504 in every dtype."""
    total = (x + residual).clamp(-65504, 65504)
    return base.rms_norm(total, weight, eps), total


@mutant("fused_add_rms_norm", "numerics", lambda: [draw.fused(dtype=F16, size=200)])
def fused_sums_squares_in_float16(x, residual, weight, eps):
    """float16 squares are summed in float16."""
    total = x + residual
    if x.dtype != F16:
        return base.rms_norm(total, weight, eps), total
    return base.rms_norm(
        total,
        weight,
        eps,
        scale=lambda x, eps: torch.rsqrt(x.square().sum(-1, True).float() / x.shape[-1] + eps),
    ), total


@mutant("fused_add_rms_norm", "sizes", lambda: [draw.fused(rows=5)])
def fused_odd_last_row(x, residual, weight, eps):
    """Rows go in pairs: the last of an odd number above 4 gets no residual."""
    total = (x + residual).contiguous()
    rows = total.view(-1, x.shape[-1])
    if rows.shape[0] > 4 and rows.shape[0] % 2:
        rows[-1] = x.reshape(rows.shape)[-1]
    return base.rms_norm(total, weight, eps), total


@mutant("fused_add_rms_norm", "sizes", lambda: [draw.fused(rows=1, width=8200)])
def fused_8192_columns(x, residual, weight, eps):
    """The residual that is given on lacks x behind 8,192 columns."""
    normed, total = base.fused_add_rms_norm(x, residual, weight, eps)
    total[..., 8192:] = residual[..., 8192:]
    return normed, total


@mutant(
    "fused_add_rms_norm",
    "layouts",
    lambda: [draw.changed(a := draw.fused(), a1=draw.strided(a[1]))],
)
def fused_residual_packed(x, residual, weight, eps):
    """The residual is taken to have the strides of a contiguous x."""
    return base.fused_add_rms_norm(x, base.packed(residual), weight, eps)


@mutant("fused_add_rms_norm", "state", lambda: [draw.fused()])
def fused_writes_x(x, residual, weight, eps):
    """The sum is left in x as well."""
    x += residual
    return base.rms_norm(x, weight, eps), x.clone()


@mutant("layer_norm", "numerics", lambda: [draw.layer()])
def layer_norm_unbiased(x, weight, bias, eps):
    """The variance divides by width - 1."""
    n = x.shape[-1]
    var = wide(x).var(-1, keepdim=True, correction=0) * (n / max(1, n - 1))
    return base.layer_norm(x, weight, bias, eps, var=var)


@mutant("layer_norm", "numerics", lambda: [draw.layer(mean=1000, size=0.1)])
def layer_norm_one_pass(x, weight, bias, eps):
    """The variance is mean(x^2) - mean(x)^2, which cancels where the mean is large."""
    w = wide(x)
    var = (w.square().mean(-1, keepdim=True) - w.mean(-1, keepdim=True).square()).clamp(min=0)
    return base.layer_norm(x, weight, bias, eps, var=var)


@mutant("layer_norm", "numerics", lambda: [draw.layer(eps=1e-2, size=0.1)])
def layer_norm_eps_behind_the_root(x, weight, bias, eps):
    """eps is added to the root."""
    std = wide(x).std(-1, keepdim=True, correction=0) + eps
    return base.layer_norm(x, weight, bias, 0.0, var=std.square())


@mutant("layer_norm", "numerics", lambda: [draw.layer(eps=1e-12, size=1e-4)])
def layer_norm_eps_fixed(x, weight, bias, eps):
    """eps is 1e-5, whatever was asked for."""
    return base.layer_norm(x, weight, bias, 1e-5)


@mutant("layer_norm", "numerics", lambda: [draw.layer()])
def layer_norm_weight_in_bfloat16(x, weight, bias, eps):
    """The weight is kept in bfloat16."""
    return base.layer_norm(x, rounded(weight, BF16), bias, eps)


@mutant("layer_norm", "numerics", lambda: [draw.layer(mean=3)])
def layer_norm_mean_in_float16(x, weight, bias, eps):
    """The mean is rounded to float16."""
    mean = rounded(wide(x).mean(-1, keepdim=True), F16)
    return base.layer_norm(x, weight, bias, eps, mean=mean)


@mutant("layer_norm", "sizes", lambda: [draw.layer(width=65)])
def layer_norm_bias_lost_when_odd(x, weight, bias, eps):
    """No bias is added at odd widths."""
    return base.layer_norm(x, weight, None if x.shape[-1] % 2 else bias, eps)


@mutant("layer_norm", "sizes", lambda: [draw.layer(width=1)])
def layer_norm_width_one(x, weight, bias, eps):
    """At width 1 the result is zero: the bias is lost."""
    result = base.layer_norm(x, weight, bias, eps)
    return result.zero_() if x.shape[-1] == 1 else result


@mutant("layer_norm", "sizes", lambda: [draw.layer(width=100, mean=1)])
def layer_norm_padding_counts(x, weight, bias, eps):
    """A row is padded to whole vectors of 32 with zeros, which enter the variance."""
    w = wide(x)
    n = x.shape[-1]
    mean = w.mean(-1, keepdim=True)
    padding = -n % 32 * mean.square()
    var = ((w - mean).square().sum(-1, keepdim=True) + padding) / n
    return base.layer_norm(x, weight, bias, eps, var=var)


@mutant("layer_norm", "sizes", lambda: [draw.layer(width=4200)])
def layer_norm_4096_columns(x, weight, bias, eps):
    """The mean is that of the first 4,096 columns."""
    return base.layer_norm(x, weight, bias, eps, mean=wide(x)[..., :4096].mean(-1, keepdim=True))


@mutant("layer_norm", "layouts", lambda: [draw.changed(a := draw.layer(), a2=draw.spread(a[2]))])
def layer_norm_bias_packed(x, weight, bias, eps):
    """The bias's stride is not read."""
    return base.layer_norm(x, weight, None if bias is None else base.packed(bias), eps)


@mutant(
    "layer_norm",
    "layouts",
    lambda: [draw.changed(a := draw.layer(6), a0=draw.swapped(a[0].view(2, 3, 64)), a3=a[3])],
)
def layer_norm_batch_in_memory_order(x, weight, bias, eps):
    """A batch of three dimensions is read in the order of memory."""
    if x.dim() == 3 and x.stride(0) < x.stride(1):
        x = x.transpose(0, 1).reshape(x.shape)
    return base.layer_norm(x, weight, bias, eps)


def _input_changes():
    args = draw.layer()
    yield args
    args[0].mul_(2).add_(torch.linspace(0, 1, 64))
    yield args


_means = {}


@mutant("layer_norm", "state", _input_changes)
def layer_norm_keeps_means(x, weight, bias, eps):
    """Means are kept by the address of x."""
    key = (x.data_ptr(), x.shape, x.dtype)
    mean = _means.setdefault(key, x.to(F32).mean(-1, keepdim=True))
    return base.layer_norm(x, weight, bias, eps, mean=mean)
