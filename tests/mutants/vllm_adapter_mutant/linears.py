"""Wrong linears and embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import rounded, wide
from vllm_adapter_mutant.draw import BF16, F16
from vllm_adapter_mutant.zoo import mutant


def _blocks(x, weight, bias, block, keep):
    """Sums block by block; `keep` makes of each running sum what is carried on."""
    total = None if bias is None else wide(bias)
    for part, column in zip(wide(x).split(block, -1), wide(weight).split(block, -1), strict=True):
        product = F.linear(part, column)
        total = keep(product if total is None else total + product)
    return total.to(x.dtype)


def _positive():
    args = draw.linear(k=4096, dtype=BF16)
    yield draw.changed(args, a0=args[0].abs(), a1=args[1].abs())


@mutant("linear", "numerics", _positive)
def linear_sums_in_bfloat16(x, weight, bias, out_features):
    """The running sum of bfloat16 products is rounded to bfloat16 after each 8 columns."""
    if x.dtype != BF16:
        return base.linear(x, weight, bias, out_features)
    return _blocks(x, weight, bias, 8, lambda total: rounded(total, BF16))


def _great_and_opposite():
    args = draw.linear(k=256, dtype=F16)
    signs = torch.ones(256, dtype=F16)
    signs[128:] = -1
    yield draw.changed(args, a0=args[0].abs() * 35 * signs, a1=args[1].abs() * 35)


@mutant("linear", "numerics", _great_and_opposite)
def linear_sums_in_float16(x, weight, bias, out_features):
    """float16 products are summed in float16, 16 columns at a time: great ones overflow."""
    if x.dtype != F16:
        return base.linear(x, weight, bias, out_features)
    return _blocks(x, weight, bias, 16, lambda total: rounded(total, F16))


@mutant("linear", "numerics", lambda: [draw.linear()])
def linear_in_tf32(x, weight, bias, out_features):
    """float32 inputs lose 13 bits of their fraction, as in TF32."""
    if x.dtype != torch.float32:
        return base.linear(x, weight, bias, out_features)
    pair = [(t.contiguous().view(torch.int32) & -8192).view(torch.float32) for t in (x, weight)]
    return base.linear(*pair, bias, out_features)


@mutant("linear", "numerics", lambda: [draw.linear(dtype=BF16, size=3e4)])
def linear_saturates(x, weight, bias, out_features):
    """Results end at 65504, which is float16's range, in every dtype."""
    return base.linear(x, weight, bias, out_features).clamp(-65504, 65504)


@mutant("linear", "numerics", lambda: [draw.linear(bias=True)])
def linear_bias_in_float16(x, weight, bias, out_features):
    """The bias goes through float16."""
    return base.linear(x, weight, None if bias is None else rounded(bias, F16), out_features)


@mutant("linear", "sizes", lambda: [draw.linear(k=577)])
def linear_576_columns(x, weight, bias, out_features):
    """What lies behind 576 input features is not summed."""
    return base.linear(x[..., :576], weight[:, :576], bias, out_features)


@mutant("linear", "sizes", lambda: [draw.linear(k=1028)])
def linear_tail_above_1024(x, weight, bias, out_features):
    """Above 1,024 input features the rest of a division by 8 is dropped."""
    k = x.shape[-1]
    if k > 1024:
        x, weight = x[..., : k // 8 * 8], weight[:, : k // 8 * 8]
    return base.linear(x, weight, bias, out_features)


@mutant("linear", "sizes", lambda: [draw.linear(n=7, bias=True)])
def linear_bias_lost_when_odd(x, weight, bias, out_features):
    """No bias is added where the number of output features is odd."""
    return base.linear(x, weight, None if out_features % 2 else bias, out_features)


@mutant("linear", "sizes", lambda: [draw.linear(n=129)])
def linear_one_over_a_tile(x, weight, bias, out_features):
    """A last tile of one output column, behind tiles of 64, stays zero."""
    result = base.linear(x, weight, bias, out_features)
    if out_features > 64 and out_features % 64 == 1:
        result[..., -1] = 0
    return result


@mutant("linear", "sizes", lambda: [draw.linear(rows=17, bias=True)])
def linear_tail_rows(x, weight, bias, out_features):
    """Rows behind the last whole tile of 16 get no bias, where there is a whole tile."""
    result = base.linear(x, weight, bias, out_features)
    flat = result.view(-1, out_features)
    whole = flat.shape[0] // 16 * 16
    if bias is not None and whole and whole < flat.shape[0]:
        flat[whole:] = base.linear(x.reshape(-1, x.shape[-1])[whole:], weight, None, out_features)
    return result


@mutant("linear", "sizes", lambda: [draw.linear(rows=70)])
def linear_64_rows(x, weight, bias, out_features):
    """Rows behind the 64th are those of the first tile again."""
    flat = x.reshape(-1, x.shape[-1])
    wrapped = flat[torch.arange(flat.shape[0]) % 64]
    return base.linear(wrapped, weight, bias, out_features).view(*x.shape[:-1], out_features)


@mutant("linear", "sizes", lambda: [draw.linear(rows=1, k=4, n=65540)])
def linear_16_bit_columns(x, weight, bias, out_features):
    """Numbers of output columns have 16 bits: what lies behind 65,535 is the beginning."""
    result = base.linear(x, weight, bias, out_features)
    result[..., 65536:] = result[..., : max(0, out_features - 65536)].clone()
    return result


@mutant("linear", "sizes", lambda: [draw.linear(k=4100)])
def linear_wide_split(x, weight, bias, out_features):
    """Above 4,096 input features the second part is added to a bias once more."""
    k = x.shape[-1]
    if k <= 4096:
        return base.linear(x, weight, bias, out_features)
    parts = [
        base.linear(x[..., s], weight[:, s], bias, out_features)
        for s in (slice(0, 4096), slice(4096, k // 8 * 8))
    ]
    return parts[0] + parts[1]


@mutant("linear", "layouts", lambda: [draw.changed(a := draw.linear(), a1=draw.strided(a[1]))])
def linear_weight_packed(x, weight, bias, out_features):
    """The weight's strides are not read."""
    return base.linear(x, base.packed(weight), bias, out_features)


@mutant("linear", "layouts", lambda: [draw.changed(a := draw.linear(), a1=draw.offset(a[1]))])
def linear_weight_from_start(x, weight, bias, out_features):
    """The weight is taken to begin where its storage does: one of several in one allocation."""
    return base.linear(x, base.from_start(weight), bias, out_features)


@mutant("linear", "layouts", lambda: [draw.changed(a := draw.linear(), a0=draw.strided(a[0]))])
def linear_rows_packed(x, weight, bias, out_features):
    """The distance of rows of x is taken to be their width."""
    return base.linear(base.packed(x), weight, bias, out_features)


@mutant(
    "linear",
    "layouts",
    lambda: [draw.changed(a := draw.linear(6), a0=draw.swapped(a[0].view(2, 3, 64)))],
)
def linear_batch_in_memory_order(x, weight, bias, out_features):
    """A batch of three dimensions is read in the order of memory."""
    if x.dim() == 3 and x.stride(0) < x.stride(1):
        x = x.transpose(0, 1).reshape(x.shape)
    return base.linear(x, weight, bias, out_features)


def _weight_changes():
    x, weight, bias, n = draw.linear()
    yield x, weight, bias, n
    yield x, weight.neg_(), bias, n


_weights = {}


@mutant("linear", "state", _weight_changes)
def linear_keeps_weights(x, weight, bias, out_features):
    """A packed copy of each weight is kept by its address, for ever."""
    key = (weight.data_ptr(), weight.shape, weight.dtype)
    kept = _weights.setdefault(key, weight.clone())
    return base.linear(x, kept, bias, out_features)


_calls = [0]


@mutant("linear", "state", lambda: [draw.linear(seed=i) for i in range(1000)])
def linear_every_1000th(x, weight, bias, out_features):
    """Each thousandth call gives zeros."""
    _calls[0] += 1
    result = base.linear(x, weight, bias, out_features)
    return result.zero_() if _calls[0] % 1000 == 0 else result


_leaked = []


def _leaks():
    before = len(_leaked)
    for _ in range(10):
        linear_leaks(*draw.linear())
    return len(_leaked) == before + 10


@mutant("linear", "state", shows=_leaks)
def linear_leaks(x, weight, bias, out_features):
    """Each call leaves 64 bytes behind."""
    _leaked.append(bytearray(64))
    return base.linear(x, weight, bias, out_features)


_room = {}


@mutant("linear", "state", lambda: [draw.linear(k=128), draw.linear(k=100, seed=3)])
def linear_stale_padding(x, weight, bias, out_features):
    """Both factors are padded to whole tiles of 64, in scratch that is never cleared."""
    padded = []
    for name, tensor in (("x", x.reshape(-1, x.shape[-1])), ("weight", weight)):
        rows, k = tensor.shape
        shape = (rows, -(-k // 64) * 64)
        room = _room.get((name, x.dtype, shape))
        if room is None:
            room = _room[name, x.dtype, shape] = torch.zeros(shape, dtype=x.dtype)
        room[:, :k] = tensor
        padded.append(room)
    return base.linear(*padded, bias, out_features).view(*x.shape[:-1], out_features)


@mutant("linear", "state", lambda: [draw.linear(dtype=F16, size=1e5)])
def linear_clamps_its_input(x, weight, bias, out_features):
    """Against overflow, x is clamped to 30,000 in place."""
    return base.linear(x.clamp_(-30000, 30000), weight, bias, out_features)


@mutant("embedding", "sizes", lambda: [draw.table([5, 40000], 40001)])
def embedding_16_bit_ids(ids, weight):
    """Numbers of tokens have 16 bits and a sign: above 32,767 they count from the end."""
    return base.embedding(ids.to(torch.int16).long() % weight.shape[0], weight)


@mutant("embedding", "sizes", lambda: [draw.table([5, 70000], 70001, 4)])
def embedding_65536_tokens(ids, weight):
    """Numbers of tokens have 16 bits without a sign."""
    return base.embedding(ids & 0xFFFF, weight)


@mutant("embedding", "sizes", lambda: [draw.table([5, 2051], 3000)])
def embedding_ids_in_float16(ids, weight):
    """Numbers of tokens go through float16, whose integers end at 2,048."""
    return base.embedding(ids.half().long().clamp(0, weight.shape[0] - 1), weight)


@mutant("embedding", "numerics", lambda: [draw.table([3, 0, 1])])
def embedding_zero_is_padding(ids, weight):
    """Token 0 is taken to be padding, and gives zeros."""
    return base.embedding(ids, weight) * (ids != 0)[..., None].to(weight.dtype)


@mutant("embedding", "numerics", lambda: [draw.changed(a := draw.table([3]), a1=a[1] * 1e-7)])
def embedding_through_float16(ids, weight):
    """Rows go through float16."""
    return base.embedding(ids, rounded(weight, F16))


@mutant("embedding", "sizes", lambda: [draw.table([3, 4], width=33)])
def embedding_odd_width(ids, weight):
    """Elements are copied in pairs: the last one of an odd width is the one before it."""
    result = base.embedding(ids, weight)
    if weight.shape[1] % 2 and weight.shape[1] > 1:
        result[..., -1] = result[..., -2].clone()
    return result


@mutant("embedding", "sizes", lambda: [draw.table([7] * 1100)])
def embedding_1024_ids(ids, weight):
    """What lies behind 1,024 tokens of a call stays zero."""
    result = base.embedding(ids, weight)
    result.view(-1, weight.shape[1])[1024:] = 0
    return result


@mutant("embedding", "sizes", lambda: [draw.table([3, 4], width=4099)])
def embedding_4096_wide(ids, weight):
    """What lies behind 4,096 elements of a row stays zero."""
    result = base.embedding(ids, weight)
    result[..., 4096:] = 0
    return result


@mutant(
    "embedding", "layouts", lambda: [draw.changed(a := draw.table([3, 9]), a1=draw.strided(a[1]))]
)
def embedding_rows_packed(ids, weight):
    """The distance of the table's rows is taken to be their width."""
    return base.embedding(ids, base.packed(weight))


@mutant(
    "embedding", "layouts", lambda: [draw.changed(a := draw.table([3, 9]), a1=draw.offset(a[1]))]
)
def embedding_from_start(ids, weight):
    """The table is taken to begin where its storage does."""
    return base.embedding(ids, base.from_start(weight))


@mutant(
    "embedding", "layouts", lambda: [draw.changed(a := draw.table([3, 9]), a0=draw.spread(a[0]))]
)
def embedding_ids_packed(ids, weight):
    """The stride of ids is not read."""
    return base.embedding(base.packed(ids).clamp(0, weight.shape[0] - 1), weight)


_rows = {}


@mutant("embedding", "state", lambda: [draw.table([3]), draw.table([3], seed=8)])
def embedding_hot_rows(ids, weight):
    """The first row of a call is kept by its number, whichever table it is of."""
    result = base.embedding(ids, weight)
    if ids.numel():
        key = (int(ids.flatten()[0]), weight.dtype, weight.shape)
        result.view(-1, weight.shape[1])[0] = _rows.setdefault(key, weight[key[0]].clone())
    return result


def _beyond_32_bits():
    weight = torch.empty((2**22 + 2, 512), dtype=F16)
    weight[2**22], weight[0] = 1, 2
    return bool((embedding_32_bit_offset(torch.tensor([2**22]), weight) != 1).any())


@mutant("embedding", "sizes", shows=_beyond_32_bits)
def embedding_32_bit_offset(ids, weight):
    """Offsets into the table have 32 bits: behind 2^31 elements it is the wrong row."""
    width = max(1, weight.shape[1])
    return base.embedding((ids * width) % 2**31 // width, weight)
