"""rms_norm: x / sqrt(mean(x^2) + eps) * weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import RandomTensors, columns, laid, streams, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._values import row_values

EPS: Final = 1e-6
ROWS: Final[Sequence[tuple[str, tuple[int, ...], float, bool]]] = (
    # name, leading shape, scale of x, whether x is a view of something wider
    ("rows", (5,), 1.0, False),
    ("one row", (1,), 1.0, False),
    ("no row", (0,), 1.0, False),
    ("three dimensions", (2, 3), 1.0, False),
    ("strided rows", (7,), 1.0, True),
    ("variance near epsilon", (4,), 1e-3, False),
    ("squares beyond float16", (4,), 1e3, False),
)
"""Shared with fused_add_rms_norm."""


def expected(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Expected:
    """The norm of float64 rows. All terms of its sum are positive: errors stay relative.

    x: float64 [..., hidden], weight: float64 [hidden] -> [..., hidden].
    """
    value = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return Expected(value, value.abs())


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def sample(name: str, rows: tuple[int, ...], scale: float, strided: bool) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "rms_norm", name)
            wide = draw.normal(*rows, hidden * (2 if strided else 1), dtype=dtype, scale=scale)
            return (
                columns(to_device, wide, 0, hidden),
                to_device(draw.normal(hidden, dtype=dtype)),
                EPS,
            )

        return Sample(name, build)

    return [sample(*row) for row in ROWS]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, _ = streams("rms_norm", seed, contents)
        x = row_values(draw, choice["values"], (*choice["rows"], hidden), dtype)
        weight = laid(to_device, draw.quick(hidden, dtype=dtype), choice["weights"])
        return laid(to_device, x, choice["layout"]), weight, choice["eps"]

    return Sample(f"drawn: {dict(choice)}", build)


TRIAL: Final = Trial(
    reference=lambda x, weight, eps: [expected(x, weight, eps)],
    samples=_samples,
    draw=_draw,
    terms=lambda facts: int(facts["hidden"]),
)
