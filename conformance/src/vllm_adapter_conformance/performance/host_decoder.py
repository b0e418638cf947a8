"""The load's decoder in plain torch on the host: what it gives in float64, and in a dtype.

Written from what a decoder is, with no code of core's. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from vllm_adapter_conformance.models.decoder_shape import KV_HEADS, DecoderShape
from vllm_adapter_conformance.ops.draw import RandomTensors

LAYERS: Final = 2
POSITIONS: Final = 512
EPS: Final = 1e-6

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Script:
    """A batch whose tokens are given: prefills of several lengths, then a token a step.

    `prompt` is [sum of lengths, hidden], packed; `steps` are [sequences, hidden] each.
    """

    lengths: Sequence[int]
    prompt: torch.Tensor
    steps: Sequence[torch.Tensor]


def draw_weights(shape: DecoderShape, seed: int) -> dict[str, torch.Tensor]:
    """The weights and the table of angles, in the shape's dtype, on the host."""
    draw, dtype = RandomTensors(seed, "load", shape.dtype), getattr(torch, shape.dtype)
    hidden, found = shape.hidden, {}
    for layer in range(LAYERS):
        for name, out in (
            ("qkv", shape.qkv),
            ("o", hidden),
            ("gate_up", 2 * hidden),
            ("down", hidden),
        ):
            weight = draw.normal(out, hidden, dtype=dtype, scale=hidden**-0.5)
            found[f"{layer}.{name}"] = weight
        for name in ("norm", "norm2"):
            found[f"{layer}.{name}"] = (
                1 + draw.normal(hidden, dtype=torch.float32, scale=0.1)
            ).to(dtype)
    turns = 10000.0 ** -torch.linspace(0, 1, shape.head_size // 2, dtype=torch.float64)
    angles = torch.arange(POSITIONS).double().outer(turns)
    return found | {"table": torch.cat((angles.cos(), angles.sin()), -1).to(dtype)}


def draw_script(shape: DecoderShape, seed: int) -> Script:
    """Sequences around the end of a block, and three steps behind them."""
    draw, dtype = RandomTensors(seed, "script", shape.dtype), getattr(torch, shape.dtype)
    lengths = (5, shape.block_size, shape.block_size + 1)
    prompt = draw.normal(sum(lengths), shape.hidden, dtype=dtype)
    steps = [draw.normal(len(lengths), shape.hidden, dtype=dtype) for _ in range(3)]
    return Script(lengths, prompt, steps)


def run_script(
    shape: DecoderShape, weights: Weights, script: Script, dtype: torch.dtype
) -> torch.Tensor:
    """What the decoder gives of a script, computed in a dtype.

    Gives [rows, hidden]: of the prompt, packed, then of each step; hidden states plus residual.
    """
    cast = {name: weight.to(dtype) for name, weight in weights.items()}
    starts = [sum(script.lengths[:i]) for i in range(len(script.lengths))]
    caches: list[_Cache] = [{} for _ in script.lengths]
    found = []
    for row, (start, length) in enumerate(zip(starts, script.lengths, strict=True)):
        tokens = script.prompt[start : start + length].to(dtype)
        found.append(_forward(shape, cast, tokens, caches[row]))
    for step in script.steps:
        for row, cache in enumerate(caches):
            found.append(_forward(shape, cast, step[row : row + 1].to(dtype), cache))
    return torch.cat(found)


_Cache = dict[int, tuple[torch.Tensor, torch.Tensor]]


def _forward(
    shape: DecoderShape, weights: Weights, x: torch.Tensor, cache: _Cache
) -> torch.Tensor:
    """x: [tokens, hidden] behind what is in the cache -> [tokens, hidden]."""
    size, heads = shape.head_size, shape.heads
    before = cache[0][0].shape[0] if cache else 0
    residual = x
    x = _norm(x, weights["0.norm"])
    for layer in range(LAYERS):
        if layer:
            residual = x + residual
            x = _norm(residual, weights[f"{layer}.norm"])
        qkv = (x @ weights[f"{layer}.qkv"].T).view(len(x), -1, size)
        query, key, value = torch.split(qkv, [heads, KV_HEADS, KV_HEADS], dim=1)
        places = weights["table"][before : before + len(x)]
        query, key = _rotate(query, places), _rotate(key, places)
        if layer in cache:
            key = torch.cat((cache[layer][0], key))
            value = torch.cat((cache[layer][1], value))
        cache[layer] = key, value
        x = _attend(query, key, value).flatten(1) @ weights[f"{layer}.o"].T
        residual = x + residual
        x = _norm(residual, weights[f"{layer}.norm2"])
        gate, up = (x @ weights[f"{layer}.gate_up"].T).chunk(2, dim=-1)
        x = (torch.nn.functional.silu(gate) * up) @ weights[f"{layer}.down"].T
    return x + residual


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    scaled = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return (scaled * weight.to(wide.dtype)).to(x.dtype)


def _rotate(heads: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """heads: [tokens, heads, size]; table: [tokens, size], cosines then sines."""
    cos, sin = table.unsqueeze(1).chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """query: [new, heads, size]; key, value: [context, kv_heads, size] -> as the query."""
    ratio = query.shape[1] // key.shape[1]
    keys, values = (t.repeat_interleave(ratio, dim=1).transpose(0, 1) for t in (key, value))
    scores = query.transpose(0, 1) @ keys.transpose(1, 2) * query.shape[-1] ** -0.5
    new, context = query.shape[0], key.shape[0]
    hidden = torch.ones(new, context, dtype=torch.bool).triu(context - new + 1)
    scores = scores.masked_fill(hidden, -torch.inf)
    found: torch.Tensor = scores.softmax(-1) @ values
    return found.transpose(0, 1)
