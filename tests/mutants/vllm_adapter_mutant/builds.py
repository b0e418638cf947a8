"""Right kernels of everything but attention, of builds unlike the CPU's own."""

from __future__ import annotations

import math
import threading

import torch
import torch.nn.functional as F

from vllm_adapter_mutant import base
from vllm_adapter_mutant.base import halves, wide
from vllm_adapter_mutant.zoo import right


def _pieces(x, weight, block):
    return [
        F.linear(a, b)
        for a, b in zip(wide(x).split(block, -1), wide(weight).split(block, -1), strict=True)
    ]


def _with_bias(total, bias, dtype):
    return (total if bias is None else total + wide(bias)).to(dtype)


@right("linear")
def right_linear_blocked(x, weight, bias, out_features):
    """float32 sums of 32 columns each, added one behind the other."""
    total = torch.zeros(*x.shape[:-1], out_features, dtype=wide(x).dtype)
    for piece in _pieces(x, weight, 32):
        total += piece
    return _with_bias(total, bias, x.dtype)


@right("linear")
def right_linear_split_k(x, weight, bias, out_features):
    """Four parts of the columns, added as a tree."""
    parts = _pieces(x, weight, max(1, -(-x.shape[-1] // 4)))
    while len(parts) > 1:
        parts = [sum(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return _with_bias(parts[0], bias, x.dtype)


@right("linear")
def right_linear_split_floats(x, weight, bias, out_features):
    """float32 as three bfloat16 parts each, and the six greatest of their products."""
    if x.dtype != torch.float32:
        return base.linear(x, weight, bias, out_features)

    def parts(tensor):
        high = tensor.bfloat16().float()
        middle = (tensor - high).bfloat16().float()
        return high, middle, tensor - high - middle

    a, b = parts(x), parts(weight)
    pairs = ((1, 1), (0, 2), (2, 0), (0, 1), (1, 0), (0, 0))
    return _with_bias(sum(F.linear(a[i], b[j]) for i, j in pairs), bias, x.dtype)


@right("linear")
def right_linear_bias_afterwards(x, weight, bias, out_features):
    """The product is rounded, then the bias added and rounded again, as addition is."""
    result = base.linear(x, weight, None, out_features)
    return result if bias is None else result + bias


@right("linear", form="torch")
def right_linear_matmul(x, weight, bias, out_features):
    """matmul by a transposed view, as plain torch that a compiler may trace."""
    result = x @ weight.t()
    return result if bias is None else result + bias


@right("rms_norm")
def right_rms_eager(x, weight, eps):
    """As transformers writes it: normalised, rounded, and then multiplied by the weight."""
    return (weight * (wide(x) * base.rms_scale(x, eps)).to(x.dtype)).contiguous()


@right("rms_norm")
def right_rms_pairwise(x, weight, eps):
    """Squares are added in pairs, as a warp's reduction does."""
    squares = wide(x).square()
    n = x.shape[-1]
    while squares.shape[-1] > 1:
        squares = F.pad(squares, (0, squares.shape[-1] % 2))
        squares = squares[..., 0::2] + squares[..., 1::2]
    return (wide(x) / (squares / n + eps).sqrt() * wide(weight)).to(x.dtype).contiguous()


_pool = {}


@right("rms_norm")
def right_rms_with_pool(x, weight, eps):
    """Scratch of the greatest size so far is kept for all calls of a thread, and always set."""
    key = (threading.get_ident(), wide(x).dtype)
    if key not in _pool or _pool[key].numel() < x.numel():
        _pool[key] = torch.empty(max(1 << 16, x.numel()), dtype=wide(x).dtype)
    room = _pool[key][: x.numel()].view(x.shape)
    room.copy_(x)
    room *= base.rms_scale(x, eps)
    room *= wide(weight)
    return room.to(x.dtype, copy=True)


@right("fused_add_rms_norm")
def right_fused_unrounded(x, residual, weight, eps):
    """The sum is normalised before it is rounded."""
    total = wide(x) + wide(residual)
    return (
        (total * base.rms_scale(total, eps) * wide(weight)).to(x.dtype).contiguous(),
        total.to(x.dtype).contiguous(),
    )


@right("fused_add_rms_norm")
def right_fused_eager(x, residual, weight, eps):
    """The rounded sum, and the norm as transformers writes it."""
    total = (x + residual).contiguous()
    return right_rms_eager(total, weight, eps).contiguous(), total


@right("silu_and_mul")
def right_silu_by_tanh(x):
    """silu(x) is x / 2 (1 + tanh(x / 2))."""
    return base.silu_and_mul(x, silu=lambda g: g / 2 * (1 + (g / 2).tanh()))


@right("silu_and_mul")
def right_silu_by_exp(x):
    """silu(x) is x / (1 + e^-x)."""
    return base.silu_and_mul(x, silu=lambda g: g / (1 + (-g).exp()))


@right("silu_and_mul")
def right_silu_rounds_its_gate(x):
    """The gate is rounded to the dtype before the product, as two kernels would."""
    gate, up = x.chunk(2, dim=-1)
    return (F.silu(wide(gate)).to(x.dtype) * up).contiguous()


@right("layer_norm")
def right_layer_norm_by_parts(x, weight, bias, eps):
    """Means and squares of 128 columns each, merged as Chan does."""
    mean, squares, count = None, None, 0
    for part in wide(x).split(128, -1):
        m, n = part.mean(-1, keepdim=True), part.shape[-1]
        s = (part - m).square().sum(-1, keepdim=True)
        if mean is None:
            mean, squares, count = m, s, n
            continue
        delta = m - mean
        squares = squares + s + delta.square() * (count * n / (count + n))
        mean, count = mean + delta * (n / (count + n)), count + n
    return base.layer_norm(x, weight, bias, eps, mean=mean, var=squares / count)


@right("layer_norm")
def right_layer_norm_divides(x, weight, bias, eps):
    """Divides by the root, and multiplies and adds in one."""
    w = wide(x)
    var, mean = torch.var_mean(w, -1, correction=0, keepdim=True)
    normed = (w - mean) / (var + eps).sqrt()
    shift = torch.zeros_like(wide(weight)) if bias is None else wide(bias)
    return torch.addcmul(shift, normed, wide(weight)).to(x.dtype).contiguous()


@right("gelu")
def right_gelu_by_parts(x, tanh):
    """erf and tanh spelt out, in float32."""

    def of(x, tanh):
        if tanh:
            return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())
        return 0.5 * x * (1 + (x / math.sqrt(2)).erf())

    return base.gelu(x, tanh, of=of)


@right("gelu")
def right_gelu_by_erfc(x, tanh):
    """x / 2 erfc(-x / root 2), and a sigmoid of twice the argument in place of tanh."""

    def of(x, tanh):
        if tanh:
            return x * (2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).sigmoid()
        return 0.5 * x * torch.special.erfc(-x / math.sqrt(2))

    return base.gelu(x, tanh, of=of)


@right("gelu_and_mul")
def right_gelu_rounds_its_gate(x, tanh):
    """The gate is rounded to the dtype before the product."""
    gate, up = halves(x)
    return (base.gelu_wide(gate, tanh).to(x.dtype) * up.to(x.dtype)).contiguous()


@right("embedding")
def right_embedding_by_select(ids, weight):
    """index_select of the ids in one row."""
    return weight.index_select(0, ids.reshape(-1)).view(*ids.shape, weight.shape[1])


@right("rotary_embedding")
def right_rope_complex(positions, query, key, table, interleaved):
    """Pairs are complex numbers, and turned by a product."""

    def turn(heads, cos, sin, width, interleaved):
        part = wide(heads[..., :width])
        if interleaved:
            pairs = part.unflatten(-1, (width // 2, 2))
        else:
            pairs = part.unflatten(-1, (2, width // 2)).transpose(-1, -2)
        turned = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin)
        joined = torch.view_as_real(turned)
        joined = (joined if interleaved else joined.transpose(-1, -2)).flatten(-2)
        return torch.cat((joined.to(heads.dtype), heads[..., width:]), -1)

    base.rotary_embedding(positions, query, key, table, interleaved, turn=turn)


@right("rotary_embedding")
def right_rope_by_tokens(positions, query, key, table, interleaved):
    """Token by token, fused multiply and add."""

    def turn(heads, cos, sin, width, interleaved):
        part = wide(heads[..., :width])
        pick = (slice(0, None, 2), slice(1, None, 2))
        if not interleaved:
            pick = (slice(0, width // 2), slice(width // 2, width))
        first, second = part[..., pick[0]], part[..., pick[1]]
        result = heads.clone()
        turned = result[..., :width]
        turned[..., pick[0]] = torch.addcmul(first * cos, second, -sin).to(heads.dtype)
        turned[..., pick[1]] = torch.addcmul(second * cos, first, sin).to(heads.dtype)
        return result

    for i in range(len(positions)):
        one = slice(i, i + 1)
        base.rotary_embedding(positions[one], query[one], key[one], table, interleaved, turn=turn)


@right("reshape_and_cache")
def right_cache_by_rows(key, value, key_cache, value_cache, slots):
    """Row by row, as one work-group a token does."""
    if key.dtype != key_cache.dtype:
        raise TypeError(f"a cache of {key_cache.dtype} for keys of {key.dtype}")
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, place = divmod(slot, key_cache.shape[1])
            key_cache[block, place], value_cache[block, place] = key[row], value[row]


@right("reshape_and_cache")
def right_cache_by_index_put(key, value, key_cache, value_cache, slots):
    """One index_put_ a cache, of the rows that are real."""
    if key.dtype != key_cache.dtype:
        raise TypeError(f"a cache of {key_cache.dtype} for keys of {key.dtype}")
    rows = torch.nonzero(slots >= 0).flatten()
    taken = slots[rows]
    size = key_cache.shape[1]
    where = (torch.div(taken, size, rounding_mode="floor"), taken.remainder(size))
    key_cache.index_put_(where, key.index_select(0, rows))
    value_cache.index_put_(where, value.index_select(0, rows))


# The kernels that all mutants are made of: where one of these fails, its mutants say nothing.


def _plain(op, function):
    def kernel(*args):
        return function(*args)

    kernel.__name__ = kernel.__qualname__ = f"right_plain_{op}"
    kernel.__module__ = __name__
    kernel.__doc__ = f"{op} in float32, rounded once: what mutants of it are made of."
    return right(op)(kernel)


right_plain_linear = _plain("linear", base.linear)
right_plain_rms_norm = _plain("rms_norm", base.rms_norm)
right_plain_fused_add_rms_norm = _plain("fused_add_rms_norm", base.fused_add_rms_norm)
right_plain_silu_and_mul = _plain("silu_and_mul", base.silu_and_mul)
right_plain_layer_norm = _plain("layer_norm", base.layer_norm)
right_plain_gelu = _plain("gelu", base.gelu)
right_plain_gelu_and_mul = _plain("gelu_and_mul", base.gelu_and_mul)
right_plain_embedding = _plain("embedding", base.embedding)
right_plain_rotary_embedding = _plain("rotary_embedding", base.rotary_embedding)
right_plain_reshape_and_cache = _plain("reshape_and_cache", base.reshape_and_cache)
right_plain_paged_attention = _plain("paged_attention", base.paged_attention)
right_plain_attention = _plain("attention", base.attention)
