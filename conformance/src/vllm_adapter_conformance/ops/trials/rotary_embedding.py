"""rotary_embedding: rotates query and key in place by their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import (
    CONTENTS,
    RandomTensors,
    in_order,
    laid,
    laid_parts,
    middle_turned,
    streams,
    torch_dtype,
)
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial

KV_HEADS: Final = 2
HEADS: Final = 3 * KV_HEADS
POSITIONS: Final = 64


def _rotate(heads: torch.Tensor, table: torch.Tensor, interleaved: bool) -> Expected:
    width = table.shape[-1]
    cos, sin = table.unsqueeze(1).chunk(2, dim=-1)
    rotary, rest = heads[..., :width], heads[..., width:]
    if interleaved:
        first, second = rotary[..., 0::2], rotary[..., 1::2]
    else:
        first, second = rotary.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    squares = (
        (first * cos).square() + (second * sin).square(),
        (second * cos).square() + (first * sin).square(),
    )

    def join(parts: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)

    # What is not rotated must come back bit by bit: its magnitude is zero.
    magnitude = torch.cat((join(squares).sqrt(), torch.zeros_like(rest)), -1)
    return Expected(torch.cat((join(turned), rest), -1), magnitude)


def _reference(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> Sequence[Expected]:
    table = cos_sin_cache[positions].double()
    return [_rotate(query, table, interleaved), _rotate(key, table, interleaved)]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    size, dtype = int(facts["head_size"]), torch_dtype(facts)
    interleaved = bool(facts["interleaved"])
    rotary = size // 2 if facts["partial"] else size

    def sample(
        name: str, tokens: int, *, fused: bool = False, table_dtype: torch.dtype = dtype
    ) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "rotary_embedding", name)
            angles = (
                torch.arange(POSITIONS)
                .double()
                .outer(10000.0 ** -torch.linspace(0, 1, rotary // 2, dtype=torch.float64))
            )
            table = torch.cat((angles.cos(), angles.sin()), -1).to(table_dtype)
            positions = draw.integers(0, POSITIONS, tokens)
            positions[:2] = torch.tensor([0, POSITIONS - 1])[:tokens]
            query = draw.normal(tokens, HEADS, size, dtype=dtype)
            key = draw.normal(tokens, KV_HEADS, size, dtype=dtype)
            if not fused:
                return (
                    to_device(positions),
                    to_device(query),
                    to_device(key),
                    to_device(table),
                    interleaved,
                )
            qkv = to_device(torch.cat((query, key, key), 1))
            views = qkv[:, :HEADS], qkv[:, HEADS : HEADS + KV_HEADS]
            return to_device(positions), *views, to_device(table), interleaved

        return Sample(name, build)

    return [
        sample("tokens", 9),
        sample("one token", 1),
        sample("no token", 0),
        sample("views of a fused qkv", 7, fused=True),
        sample("float32 table", 5, table_dtype=torch.float32),
    ]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    size, dtype = int(facts["head_size"]), torch_dtype(facts)
    rotary = max(2, int(size * choice["width"]) // 2 * 2) if facts["partial"] else size
    kv_heads, places, tokens = choice["kv_heads"], choice["positions"], choice["tokens"]
    heads, table_dtype = kv_heads * choice["ratio"], dtype
    if choice["table"] == "float32":
        table_dtype = torch.float32

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, where = streams("rotary_embedding", seed, contents)
        positions = where.integers(0, places, tokens)
        positions[:2] = torch.tensor([places - 1, 0])[:tokens]
        positions = positions[where.permutation(tokens)]
        if choice["order"] != "mixed":
            positions = in_order(where, tokens, places, choice["order"])
        positions = middle_turned(positions, contents)
        table = torch.full((places, rotary), torch.nan, dtype=table_dtype)
        seen = torch.unique(positions)
        base = (1e4, 5e5, 1e2)[CONTENTS[contents][0]]
        turns = base ** -torch.linspace(0, 1, rotary // 2, dtype=torch.float64)
        angles = seen.double().outer(turns)
        table[seen] = torch.cat((angles.cos(), angles.sin()), -1).to(table_dtype)
        scale = {"large": 1e3, "tiny": 1e-3}.get(choice["values"], 1.0)
        qkv = draw.quick(tokens, heads + 2 * kv_heads, size, dtype=dtype, scale=scale)
        parts = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        layouts = choice["layout"], choice["keys"], choice["keys"]
        query, key, _ = laid_parts(to_device, parts, layouts)
        table = laid(to_device, table, choice["weights"])
        positions = laid(to_device, positions, choice["ids"])
        return positions, query, key, table, bool(facts["interleaved"])

    return Sample(f"drawn: {dict(choice)}", build)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    as_stored=frozenset({3}),
    terms=lambda facts: 2,
)
