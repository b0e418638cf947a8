"""The values of samples, by the names that `dimensions` has for them."""

from __future__ import annotations

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
    scales = {"tiny": 1e-3, "large": 1e3}
    values = draw.quick(*shape, dtype=dtype, scale=scales.get(name, 1.0))
    if name == "shifted":
        return values + 30
    if name == "one element" and values.numel():
        places = draw.integers(0, shape[-1], *shape[:-1]).unsqueeze(-1)
        values.scatter_(-1, places, 2e4 if shape[-1] > 1 else 2e3)
    if name == "cancelling":
        half = shape[-1] // 2
        values[..., half : 2 * half] = -values[..., :half]
    return values


def gate_values(
    draw: RandomTensors, name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Arguments of an activation. Minus infinity is none: its result is no number for some."""
    least = torch.finfo(dtype).smallest_normal
    scales = {"tiny": 1e-3, "saturated": 15.0, "denormal": least / 8}
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
    least = torch.finfo(dtype).smallest_normal
    values = draw.quick(
        *shape, dtype=torch.float32, scale=least / 2 if name == "denormal" else 1.0
    )
    if name == "inf":
        values[draw.some(*shape)] = torch.inf
        values[draw.some(*shape)] = -torch.inf
    return values.to(dtype)


def score_values(
    draw: RandomTensors, name: str, query: torch.Tensor, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys [..., heads, size], of normal values, made to have scores of that kind.

    Scores far from zero come from one element: in a sum of many the order of adding would matter.
    """
    if name == "tiny":
        return query * 1e-3, keys
    if name == "spread":
        return query * 4, keys * 4
    if name == "no query":
        return query * 0, keys
    if name == "equal keys":
        return query, keys[:1].expand_as(keys).clone() if len(keys) else keys
    if name == "one key" and len(keys):
        keys[int(draw.integers(0, len(keys), 1))] *= 30
    if name in ("far below", "far above"):
        query[..., 0] = 500
        keys[..., 0] = -448 if name == "far below" else 448
    return query, keys
