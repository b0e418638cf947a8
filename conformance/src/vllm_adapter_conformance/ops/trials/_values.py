"""The values of samples, by the names that `dimensions` has for them."""

from __future__ import annotations

import math
from typing import Final

import torch

from vllm_adapter_conformance.ops.draw import RandomTensors

BEYOND_EXP: Final = (88.0, 89.0, 104.0, 1000.0, -80.0, -104.0, -200.0, -1000.0)
"""Where the exponential of float32 is about to overflow, or has.

Between -104 and -88 a result is less than 1e-36, and zero for those who divide by infinity.
"""


def row_values(
    draw: RandomTensors, name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Rows of a norm or a product."""
    if name == "zeros":
        return torch.zeros(shape, dtype=dtype)
    if name == "constant":
        row = draw.quick(*shape[:-1], 1, dtype=dtype, scale=3.0)
        return row.expand(shape).contiguous()
    # Beyond float16's range in other dtypes, and squares that float32 holds.
    great = 1e3 if dtype == torch.float16 else 1e6
    scales = {"tiny": 1e-3, "large": 1e3, "great": great}
    values = draw.quick(*shape, dtype=dtype, scale=scales.get(name, 1.0))
    if name == "shifted":
        return values + 30
    if name == "far from zero":
        return values * 0.5 + 700
    if name in ("positive", "opposite"):
        values = values.abs()
    if name == "zero rows":
        values[draw.integers(0, 2, *shape[:-1]) == 0] = 0
    if name == "nan":
        # Some rows are no numbers, and the others have nothing of it.
        values[draw.some(*shape)] = torch.nan
        values[draw.integers(0, 2, *shape[:-1]) == 0] = 1.5
    if name == "one element" and values.numel():
        places = draw.integers(0, shape[-1], *shape[:-1]).unsqueeze(-1)
        values.scatter_(-1, places, 2e4 if shape[-1] > 1 else 2e3)
    if name in ("cancelling", "opposite"):
        half = shape[-1] // 2
        values[..., half : 2 * half] = -values[..., :half]
    return values


def gate_values(
    draw: RandomTensors, name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Arguments of an activation. Minus infinity is none: its result is no number for some."""
    least = torch.finfo(dtype).smallest_normal
    scales = {"tiny": 1e-3, "saturated": 15.0, "denormal": least / 8}
    if name == "even steps":
        # Each part of the function is met, and both signs beside every power of two.
        count = max(1, math.prod(shape))
        steps = torch.linspace(-12, 12, max(count, 2))[:count]
        some = draw.log_uniform(2**-10, 16, count, dtype=torch.float32)
        return torch.where(draw.some(count), some, steps)[: math.prod(shape)].view(shape).to(dtype)
    if name == "great":
        return draw.log_uniform(1.0, 3e4, *shape, dtype=dtype)
    if name == "zeros":
        return draw.quick(*shape, dtype=dtype).sign() * 0
    values = draw.quick(*shape, dtype=torch.float32, scale=scales.get(name, 1.0))
    if name == "beyond exp":
        values = torch.tensor(BEYOND_EXP)[draw.integers(0, len(BEYOND_EXP), *shape)]
    if name in ("inf", "nan"):
        values[draw.some(*shape)] = float(name)
    return values.to(dtype)


def up_values(draw: RandomTensors, name: str, gate: torch.Tensor) -> torch.Tensor:
    """What a gate is multiplied with: never zero times infinity."""
    values = draw.quick(*gate.shape, dtype=gate.dtype)
    if name == "great":
        # Beyond float16's range where the dtype has more.
        values = values * (1e-3 if gate.dtype == torch.float16 else 1e4)
    if name == "denormal":
        # A gate that is flushed to zero may cost one smallest number, and no multiple of it.
        values = values.clamp(-0.9, 0.9)
    if name == "inf":
        values[draw.some(*gate.shape) & (gate > 0.5)] = torch.inf
    if name == "nan":
        values[draw.some(*gate.shape)] = torch.nan
    return values


def copied_values(
    draw: RandomTensors, name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """What is copied, bit by bit."""
    info = torch.finfo(dtype)
    if name == "great":
        return draw.log_uniform(1.0, info.max * 0.99, *shape, dtype=dtype)
    scale = info.smallest_normal / 2 if name == "denormal" else 1.0
    values = draw.quick(*shape, dtype=torch.float32, scale=scale)
    if name == "nan":
        values[draw.some(*shape)] = torch.nan
    if name == "inf":
        values[draw.some(*shape)] = torch.inf
        values[draw.some(*shape)] = -torch.inf
    return values.to(dtype)


def apart_from_keys(name: str, *, one_tensor: bool) -> str:
    """The name of scores, `normal` in the place of nearly even ones where values are the keys.

    A weight that is rounded to the dtype, as matrix units want it, is off by a part that depends
    on its key. With values of their own these errors are each other's noise, as the budget has it.
    """
    return "normal" if one_tensor and name in ("tiny", "positive") else name


def score_values(
    draw: RandomTensors,
    name: str,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    places: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values [..., heads, size], made to have scores and sums of that kind.

    places: [keys], where in its sequence each key lies, of [0, 1). Scores far from zero come from
    one element: in a sum of many the order of adding would matter.
    """
    if name == "tiny":
        query = query * 1e-3
    elif name == "spread":
        query, keys = query * 4, keys * 4
    elif name == "no query":
        query = query * 0
    elif name == "equal keys" and len(keys):
        keys = keys[:1].expand_as(keys).clone()
    elif name == "one key" and len(keys):
        keys[int(draw.integers(0, len(keys), 1))] *= 30
    elif name in ("rising", "falling"):
        # The largest score is met late, or early: sums so far have to be scaled.
        query[..., 0] = 8
        rising = 60 * (places if name == "rising" else 1 - places)
        keys[..., 0] = rising[:, None].to(keys.dtype)
    elif name in ("far below", "far above"):
        query[..., 0] = 500
        keys[..., 0] = -448 if name == "far below" else 448
    elif name == "far apart":
        # What is hidden may be far above all that is seen.
        query[..., 0] = 500
        keys[..., 0] = 448 * (1 - 2 * draw.integers(0, 2, len(keys), 1)).to(keys.dtype)
    elif name == "positive":
        # Equal weights, and a sum that grows with every key.
        query, values = query * 1e-3, values.abs() + 1
    elif name == "great values":
        values = values * (1e3 if values.dtype == torch.float16 else 1e6)
    return query, keys, values
