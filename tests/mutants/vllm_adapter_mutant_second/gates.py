"""Wrong kernels of silu_and_mul, gelu and gelu_and_mul."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from vllm_adapter_mutant import base

from vllm_adapter_mutant_second import draw
from vllm_adapter_mutant_second.zoo import mutant

_memo: dict[tuple[object, ...], torch.Tensor] = {}
_first_dtype: dict[tuple[object, ...], torch.dtype] = {}


def _of_gates(low, high, dtype=torch.float32):
    gate = torch.linspace(low, high, 64).repeat(3, 1)
    return [(torch.cat((gate, draw.normal(3, 64)), -1).to(dtype),)]


@mutant("silu_and_mul", "numerics", lambda: _of_gates(-4, 4))
def silu_short_logarithm(x):
    """exp(x) is 2^(1.4424 x), as log2(e) is in float16."""
    return base.silu_and_mul(
        x, silu=lambda gate: gate / (1 + torch.exp2((-gate * 1.4424).clamp(max=126)))
    )


def _wide_of_61():
    return [(draw.normal(40, 122),)]


@mutant("silu_and_mul", "sizes", _wide_of_61)
def silu_row_by_reciprocal(x):
    """An element's row is its number times the reciprocal of the width, in float32."""
    d = x.shape[-1] // 2
    flat = x.reshape(-1, 2 * d)
    number = torch.arange(len(flat) * d)
    row = (number.float() * torch.tensor(1.0 / d, dtype=torch.float32)).floor().long()
    row = row.clamp(max=max(0, len(flat) - 1))
    column = number - row * d
    gate = base.wide(flat)[row, column]
    up = base.wide(flat)[row, d + column.clamp(max=d - 1)]
    return (F.silu(gate) * up).to(x.dtype).view(*x.shape[:-1], d)


@mutant("silu_and_mul", "numerics", lambda: _of_gates(-4, 40))
def silu_clamps_its_gate(x):
    """The gate is at most 20, as some models want it and others do not."""
    return base.silu_and_mul(x, silu=lambda gate: F.silu(gate.clamp(max=20)))


@mutant("silu_and_mul", "state", lambda: [(draw.normal(64, 2048),)])
def silu_in_place_when_large(x):
    """A large result is made in the place of the gate, and copied."""
    result = base.silu_and_mul(x)
    if result.numel() >= 65536:
        x[..., : x.shape[-1] // 2] = result
    return result


@mutant("silu_and_mul", "layouts", lambda: [(draw.normal(128, 128).T[:3],)])
def silu_columns_adjacent(x):
    """Rows may lie apart; the elements of a row are read one behind the other."""
    strides = *x.stride()[:-1], 1
    return base.silu_and_mul(x.as_strided(x.shape, strides, x.storage_offset()))


@mutant("gelu", "sizes", lambda: [(draw.normal(2, 1536), False)])
def gelu_tanh_in_wide_rows(x, tanh):
    """Rows above 1024 run a build that has the approximation by tanh alone."""
    return base.gelu(x, tanh or x.shape[-1] > 1024)


@mutant("gelu", "numerics", lambda: [(draw.normal(8, 64), False), (draw.normal(8, 64), True)])
def gelu_by_table(x, tanh):
    """Phi from 1024 numbers between -8 and 8, with straight lines between them."""
    points = torch.linspace(-8, 8, 1025, dtype=base.wide(x).dtype)
    values = base.gelu_wide(points, tanh)
    place = (base.wide(x).clamp(-8, 8) + 8) * 64
    left = place.floor().nan_to_num(0).long().clamp(0, 1023)
    near = values[left] + (values[left + 1] - values[left]) * (place - left)
    return torch.where(x > 8, base.wide(x), near).to(x.dtype).contiguous()


@mutant("gelu", "layouts", lambda: [(draw.normal(3 * 64 + 1)[1:].view(3, 64), False)])
def gelu_aligns_its_address(x, tanh):
    """Reads begin at a multiple of 16 bytes, at or before x's first element."""
    step = 16 // x.element_size()
    return base.gelu(x.as_strided(x.shape, x.stride(), x.storage_offset() // step * step), tanh)


def _same_first_element():
    a, b = draw.normal(3, 88, seed=1), draw.normal(3, 88, seed=2)
    x = a.clone()
    yield x, False
    x.copy_(b)
    x[0, 0] = a[0, 0]
    yield x, False


@mutant("gelu", "state", _same_first_element)
def gelu_remembers_by_address(x, tanh):
    """The last result of a shape is given again for the same address and first element."""
    if not x.numel():
        return base.gelu(x, tanh)
    first = x.flatten()[0].item()
    key = x.data_ptr(), x.shape, x.stride(), x.dtype, tanh, first
    if key not in _memo:
        _memo.clear()
        _memo[key] = base.gelu(x, tanh)
    return _memo[key].clone()


@mutant("gelu_and_mul", "numerics", lambda: [(draw.normal(3, 128, size=1e-4), False)])
def gelu_and_mul_drops_small_products(x, tanh):
    """Products below 10^-6 are zero."""
    gate, up = base.halves(x)
    product = base.gelu_wide(gate, tanh) * up
    return product.masked_fill(product.abs() < 1e-6, 0).to(x.dtype).contiguous()


@mutant("gelu_and_mul", "sizes", lambda: [(draw.normal(3, 2 * 520), False)])
def gelu_and_mul_thin_last_tile(x, tanh):
    """A last tile of 512 columns that has fewer than 16 is not run."""
    result = base.gelu_and_mul(x, tanh)
    d = result.shape[-1]
    if d > 512 and 0 < d % 512 < 16:
        result[..., d // 512 * 512 :] = 0
    return result


@mutant("gelu_and_mul", "layouts", lambda: [(draw.normal(2, 3, 128), False)])
def gelu_and_mul_halves_of_a_batch(x, tanh):
    """With a dimension for the batch, each batch is halved and not each row."""
    if x.dim() != 3:
        return base.gelu_and_mul(x, tanh)
    gate, up = base.wide(x).flatten(1).chunk(2, -1)
    result = base.gelu_wide(gate, tanh) * up
    return result.view(*x.shape[:-1], x.shape[-1] // 2).to(x.dtype)


def _two_dtypes():
    x = draw.normal(3, 2 * 56)
    return [(x.bfloat16(), False), (x, False)]


@mutant("gelu_and_mul", "state", _two_dtypes)
def gelu_and_mul_built_for_the_first_dtype(x, tanh):
    """A build is found by shape and form; it rounds to the dtype of the first call."""
    dtype = _first_dtype.setdefault((x.shape[-1], tanh), x.dtype)
    result = base.gelu_and_mul(x, tanh)
    narrower = torch.finfo(dtype).eps > torch.finfo(x.dtype).eps
    return base.rounded(result, dtype) if narrower else result
