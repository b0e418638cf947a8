"""Wrong rotations."""

from __future__ import annotations

import torch

from vllm_adapter_mutant import base, draw
from vllm_adapter_mutant.base import rounded, wide
from vllm_adapter_mutant.draw import BF16
from vllm_adapter_mutant.zoo import mutant

SOME = [0, 1, 5, 9]


@mutant("rotary_embedding", "sizes", lambda: [draw.rope(SOME, turned=32)])
def rope_partial_by_head(positions, query, key, table, interleaved):
    """Where a part of the head turns, pairs lie half a head apart, not half of the part."""

    def turn(heads, cos, sin, width, interleaved):
        half = heads.shape[-1] // 2
        if interleaved or width == heads.shape[-1]:
            return base.turn(heads, cos, sin, width, interleaved)
        result = heads.clone()
        first, second = wide(heads[..., : width // 2]), wide(heads[..., half : half + width // 2])
        result[..., : width // 2] = (first * cos - second * sin).to(heads.dtype)
        result[..., half : half + width // 2] = (second * cos + first * sin).to(heads.dtype)
        return result

    base.rotary_embedding(positions, query, key, table, interleaved, turn=turn)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope(SOME, turned=32, interleaved=True)])
def rope_partial_never_interleaved(positions, query, key, table, interleaved):
    """Where a part of the head turns, neighbours are never pairs."""
    interleaved = interleaved and table.shape[-1] == query.shape[-1]
    base.rotary_embedding(positions, query, key, table, interleaved)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope(SOME, turned=16)])
def rope_partial_is_half(positions, query, key, table, interleaved):
    """At most half a head is left alone: of a smaller part the angles of the rest are zero."""

    def turn(heads, cos, sin, width, interleaved):
        size = heads.shape[-1]
        if width * 2 >= size or interleaved:
            return base.turn(heads, cos, sin, width, interleaved)
        missing = size // 4 - width // 2
        cos = torch.nn.functional.pad(cos, (0, missing), value=1.0)
        sin = torch.nn.functional.pad(sin, (0, missing))
        return base.turn(heads, cos, sin, size // 4 * 2, interleaved)

    base.rotary_embedding(positions, query, key, table, interleaved, turn=turn)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope([3, 1030])])
def rope_1024_positions(positions, query, key, table, interleaved):
    """Positions end at 1,023."""
    base.rotary_embedding(positions.clamp(max=1023), query, key, table, interleaved)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope([3, 300])])
def rope_8_bit_positions(positions, query, key, table, interleaved):
    """Positions have 8 bits."""
    base.rotary_embedding(positions & 0xFF, query, key, table, interleaved)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope([3, 2051])])
def rope_positions_in_float16(positions, query, key, table, interleaved):
    """Positions go through float16, whose integers end at 2,048."""
    positions = positions.half().long().clamp(max=table.shape[0] - 1)
    base.rotary_embedding(positions, query, key, table, interleaved)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope(SOME, kv=1)])
def rope_one_key_head(positions, query, key, table, interleaved):
    """A single head of keys does not turn."""
    keys = key if key.shape[1] > 1 else key.clone()
    base.rotary_embedding(positions, query, keys, table, interleaved)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope(SOME, heads=10)])
def rope_eight_heads(positions, query, key, table, interleaved):
    """Query heads behind the last whole group of 8 do not turn, where there are more than 8."""
    heads = query.shape[1] // 8 * 8 if query.shape[1] > 8 else query.shape[1]
    base.rotary_embedding(positions, query[:, :heads], key, table, interleaved)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope(SOME, head=80)])
def rope_tail_of_a_head(positions, query, key, table, interleaved):
    """Pairs behind whole vectors of 16 are left alone, in heads of 80 for example."""

    def turn(heads, cos, sin, width, interleaved):
        result = base.turn(heads, cos, sin, width, interleaved)
        half, whole = width // 2, width // 2 // 16 * 16
        if whole and not interleaved:
            result[..., whole:half] = heads[..., whole:half]
            result[..., half + whole : width] = heads[..., half + whole : width]
        return result

    base.rotary_embedding(positions, query, key, table, interleaved, turn=turn)


@mutant("rotary_embedding", "sizes", lambda: [draw.rope(range(70))])
def rope_64_tokens(positions, query, key, table, interleaved):
    """Behind 64 tokens the positions begin again."""
    wrapped = positions[torch.arange(len(positions)) % 64]
    base.rotary_embedding(wrapped, query, key, table, interleaved)


@mutant("rotary_embedding", "numerics", lambda: [draw.rope(SOME)])
def rope_second_after_first(positions, query, key, table, interleaved):
    """In float32 the second half is made of a first half that has turned already."""

    def turn(heads, cos, sin, width, interleaved):
        result = base.turn(heads, cos, sin, width, interleaved)
        half = width // 2
        if heads.dtype == torch.float32 and not interleaved:
            old, new = heads[..., half:width], result[..., :half]
            result[..., half:width] = old * cos + new * sin
        return result

    base.rotary_embedding(positions, query, key, table, interleaved, turn=turn)


@mutant("rotary_embedding", "numerics", lambda: [draw.rope(SOME)])
def rope_table_in_bfloat16(positions, query, key, table, interleaved):
    """The table is kept in bfloat16."""
    base.rotary_embedding(positions, query, key, rounded(table, BF16), interleaved)


@mutant("rotary_embedding", "layouts", lambda: [draw.changed(draw.rope(SOME, heads=4),
        a1=draw.normal(4, 8, 64)[:, :4])])  # fmt: skip
def rope_query_packed(positions, query, key, table, interleaved):
    """The query is a part of merged q, k and v, and its strides are not read."""
    base.rotary_embedding(positions, base.packed(query), key, table, interleaved)


@mutant(
    "rotary_embedding",
    "layouts",
    lambda: [draw.changed(a := draw.rope(SOME), a0=draw.spread(a[0]))],
)
def rope_positions_packed(positions, query, key, table, interleaved):
    """The stride of positions is not read."""
    positions = base.packed(positions).clamp(0, table.shape[0] - 1)
    base.rotary_embedding(positions, query, key, table, interleaved)


@mutant(
    "rotary_embedding",
    "layouts",
    lambda: [draw.changed(a := draw.rope(SOME), a3=draw.strided(a[3]))],
)
def rope_table_packed(positions, query, key, table, interleaved):
    """The distance of the table's rows is taken to be their width."""
    base.rotary_embedding(positions, query, key, base.packed(table), interleaved)


_angles = {}


@mutant("rotary_embedding", "state", lambda: [draw.rope(SOME), draw.rope([2, 3, 4, 9])])
def rope_keeps_angles(positions, query, key, table, interleaved):
    """Positions are kept by the number of tokens and the last one."""
    if len(positions):
        positions = _angles.setdefault((len(positions), int(positions[-1])), positions.clone())
    base.rotary_embedding(positions, query, key, table, interleaved)


def _two_tables():
    yield draw.rope(SOME)
    args = draw.rope(SOME)
    cos, sin = args[3].chunk(2, -1)
    yield draw.changed(args, a3=torch.cat((cos, -sin), -1))


_tables = {}


@mutant("rotary_embedding", "state", _two_tables)
def rope_first_table(positions, query, key, table, interleaved):
    """Of several tables of one shape the first is used for ever."""
    table = _tables.setdefault((table.shape, table.dtype), table.clone())
    base.rotary_embedding(positions, query, key, table, interleaved)


@mutant("rotary_embedding", "numerics", lambda: [draw.rope(SOME)])
def rope_sine_of_six_bits(positions, query, key, table, interleaved):
    """Sines keep six bits."""

    def turn(heads, cos, sin, width, interleaved):
        mantissa, exponent = torch.frexp(sin)
        return base.turn(
            heads, cos, torch.ldexp((mantissa * 64).round() / 64, exponent), width, interleaved
        )

    base.rotary_embedding(positions, query, key, table, interleaved, turn=turn)
