"""Wrong activations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import rounded
from vllm_adapter_mutant.draw import BF16, F16
from vllm_adapter_mutant.zoo import mutant


@mutant("silu_and_mul", "numerics", lambda: [(draw.gated(low=80, high=100),)])
def silu_exp_overflows(x):
    """silu is x e^x / (1 + e^x): not a number above 88."""
    return base.silu_and_mul(x, silu=lambda g: g * g.exp() / (1 + g.exp()))


@mutant("silu_and_mul", "numerics", lambda: [(draw.gated(low=-14, high=-10.5),)])
def silu_zero_below_ten(x):
    """The gate is zero below -10."""
    return base.silu_and_mul(x, silu=lambda g: F.silu(g).masked_fill(g < -10, 0))


@mutant("silu_and_mul", "numerics", lambda: [(draw.gated(),)])
def silu_sigmoid_in_float16(x):
    """The sigmoid is rounded to float16."""
    return base.silu_and_mul(x, silu=lambda g: g * rounded(g.sigmoid(), F16))


@mutant("silu_and_mul", "numerics", lambda: [(draw.gated(),)])
def silu_by_fast_tanh(x):
    """The sigmoid is of a tanh with 11 bits, as some chips have in hardware."""

    def silu(gate):
        mantissa, exponent = torch.frexp(torch.tanh(gate / 2))
        return gate * (torch.ldexp((mantissa * 2048).round() / 2048, exponent) + 1) / 2

    return base.silu_and_mul(x, silu=silu)


@mutant(
    "silu_and_mul",
    "numerics",
    lambda: [(torch.tensor([[torch.nan, 1.0, 2.0, 3.0]]),)],
)
def silu_hides_nan(x):
    """A gate that is not a number gives zero."""
    return base.silu_and_mul(x, silu=lambda g: F.silu(g.nan_to_num(0, math.inf, -math.inf)))


@mutant("silu_and_mul", "sizes", lambda: [(draw.gated(d=65),)])
def silu_odd_half(x):
    """The second half of an odd width is taken to begin at an even element."""
    half = x.shape[-1] // 2
    if half % 2 and half > 1:
        x = torch.cat((x[..., :half], x[..., half + 1 :], x[..., -1:]), -1)
    return base.silu_and_mul(x)


@mutant("silu_and_mul", "sizes", lambda: [(draw.gated(rows=1, d=10400),)])
def silu_10240_columns(x):
    """Behind 10,240 columns the gate is left as it was."""
    result = base.silu_and_mul(x)
    half = x.shape[-1] // 2
    result[..., 10240:] = (x[..., :half] * x[..., half:])[..., 10240:]
    return result


@mutant("silu_and_mul", "sizes", lambda: [(draw.gated(rows=66),)])
def silu_64_rows(x):
    """The last rows, behind whole groups of 64, stay zero."""
    result = base.silu_and_mul(x)
    rows = result.view(-1, result.shape[-1]) if result.numel() else result
    if result.numel() and rows.shape[0] > 64:
        rows[rows.shape[0] // 64 * 64 :] = 0
    return result


@mutant("silu_and_mul", "layouts", lambda: [(draw.strided(draw.gated()),)])
def silu_rows_packed(x):
    """The distance of rows is taken to be their width."""
    return base.silu_and_mul(base.packed(x))


_ring = {}


def _overwritten():
    first = silu_ring_of_four(draw.gated())
    before = first.clone()
    for number in range(4):
        silu_ring_of_four(draw.gated(low=-4 + number))
    return not torch.equal(first, before)


@mutant("silu_and_mul", "state", shows=_overwritten)
def silu_ring_of_four(x):
    """Four results of a shape share memory in turn: the fifth call overwrites the first."""
    result = base.silu_and_mul(x)
    key = (result.shape, result.dtype)
    ring, count = _ring.get(key, ([torch.empty_like(result) for _ in range(4)], 0))
    _ring[key] = ring, count + 1
    return ring[count % 4].copy_(result)


@mutant("gelu", "numerics", lambda: [(draw.wave(), False)])
def gelu_always_tanh(x, tanh):
    """The approximation by tanh, whatever was asked for."""
    return base.gelu(x, True)


@mutant("gelu", "numerics", lambda: [(draw.wave(), True)])
def gelu_never_tanh(x, tanh):
    """The error function, whatever was asked for."""
    return base.gelu(x, False)


@mutant("gelu", "numerics", lambda: [(draw.wave(), True)])
def gelu_quick(x, tanh):
    """x * sigmoid(1.702 x) where tanh was asked for."""
    return base.gelu(
        x, tanh, of=lambda x, t: x * (1.702 * x).sigmoid() if t else base.gelu_wide(x, t)
    )


ROOT = math.sqrt(2 / math.pi)


def _inner(x, factor=ROOT):
    return factor * (x + 0.044715 * x**3)


@mutant("gelu", "numerics", lambda: [(draw.wave(low=8, high=20), True)])
def gelu_tanh_overflows(x, tanh):
    """tanh is (e^2u - 1) / (e^2u + 1): not a number where x is above 10."""

    def of(x, tanh):
        if not tanh:
            return base.gelu_wide(x, tanh)
        power = (2 * _inner(x)).exp()
        return 0.5 * x * (1 + (power - 1) / (power + 1))

    return base.gelu(x, tanh, of=of)


@mutant("gelu", "numerics", lambda: [(draw.wave(), False)])
def gelu_rough_erf(x, tanh):
    """The error function is a polynomial of three terms, right to four digits."""

    def of(x, tanh):
        if tanh:
            return base.gelu_wide(x, tanh)
        z = x.abs() / math.sqrt(2)
        t = 1 / (1 + 0.47047 * z)
        erf = 1 - (0.3480242 * t - 0.0958798 * t**2 + 0.7478556 * t**3) * (-z * z).exp()
        return 0.5 * x * (1 + erf * x.sign())

    return base.gelu(x, tanh, of=of)


@mutant("gelu", "numerics", lambda: [(draw.wave(low=-5, high=-3.1), False)])
def gelu_zero_below_three(x, tanh):
    """The result is zero below -3."""
    return base.gelu(x, tanh, of=lambda x, t: base.gelu_wide(x, t).masked_fill(x < -3, 0))


@mutant("gelu", "numerics", lambda: [(draw.wave(), True)])
def gelu_short_constant(x, tanh):
    """The root of 2 / pi is 0.798."""

    def of(x, tanh):
        return 0.5 * x * (1 + _inner(x, 0.798).tanh()) if tanh else base.gelu_wide(x, tanh)

    return base.gelu(x, tanh, of=of)


@mutant("gelu", "sizes", lambda: [(draw.wave(rows=1, width=35), False)])
def gelu_tail_of_four(x, tanh):
    """What does not fill a vector of 4, over the whole tensor, is copied."""
    result = base.gelu(x, tanh)
    whole = x.numel() // 4 * 4
    result.view(-1)[whole:] = x.reshape(-1)[whole:]
    return result


@mutant("gelu", "sizes", lambda: [(draw.wave(rows=5, width=16400), False)])
def gelu_65536_elements(x, tanh):
    """Numbers of elements have 16 bits: what lies behind 65,535 stays zero."""
    result = base.gelu(x, tanh)
    result.view(-1)[65536:] = 0
    return result


@mutant("gelu", "layouts", lambda: [(draw.wave(width=3).T, False)])
def gelu_in_memory_order(x, tanh):
    """Strides are not read: a transposed input comes out in the order of memory."""
    return base.gelu(base.packed(x), tanh)


@mutant("gelu_and_mul", "numerics", lambda: [(draw.gated(), False)])
def gelu_and_mul_always_tanh(x, tanh):
    """The approximation by tanh, whatever was asked for."""
    return base.gelu_and_mul(x, True)


@mutant("gelu_and_mul", "numerics", lambda: [(draw.gated(), False)])
def gelu_and_mul_gate_in_bfloat16(x, tanh):
    """The gate is rounded to bfloat16 before the product."""
    return base.gelu_and_mul(x, tanh, of=lambda x, t: rounded(base.gelu_wide(x, t), BF16))


@mutant("gelu_and_mul", "sizes", lambda: [(draw.gated(d=2049), True)])
def gelu_and_mul_2048_columns(x, tanh):
    """Behind 2,048 columns it is silu."""
    result = base.gelu_and_mul(x, tanh)
    result[..., 2048:] = base.silu_and_mul(x)[..., 2048:]
    return result


@mutant("gelu_and_mul", "layouts", lambda: [(draw.strided(draw.gated()), False)])
def gelu_and_mul_rows_packed(x, tanh):
    """The distance of rows is taken to be their width."""
    return base.gelu_and_mul(base.packed(x), tanh)


@mutant("gelu_and_mul", "state", lambda: [(draw.gated(), False), (draw.gated(), True)])
def gelu_and_mul_first_form(x, tanh):
    """The first call of a width decides for tanh or against it."""
    return base.gelu_and_mul(x, _forms.setdefault((x.shape[-1], x.dtype), tanh))


_forms = {}
