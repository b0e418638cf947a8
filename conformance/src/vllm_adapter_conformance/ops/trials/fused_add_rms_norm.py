"""fused_add_rms_norm: s = x + residual, then (rms_norm(s), s)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import RandomTensors, columns, laid, streams, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials import rms_norm
from vllm_adapter_conformance.ops.trials._values import row_values


def _reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> Sequence[Expected]:
    total = x + residual
    return [rms_norm.expected(total, weight, eps), Expected(total, total.abs())]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def sample(name: str, rows: tuple[int, ...], scale: float, strided: bool) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "fused_add_rms_norm", name)
            wide = draw.normal(*rows, hidden * (2 if strided else 1), dtype=dtype, scale=scale)
            residual = draw.normal(*rows, hidden, dtype=dtype, scale=scale)
            weight = draw.normal(hidden, dtype=dtype)
            return (
                columns(to_device, wide, 0, hidden),
                to_device(residual),
                to_device(weight),
                rms_norm.EPS,
            )

        return Sample(name, build)

    return [sample(*row) for row in rms_norm.ROWS]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, _ = streams("fused_add_rms_norm", seed, contents)
        shape = (*choice["rows"], hidden)
        x, residual = (row_values(draw, choice["values"], shape, dtype) for _ in range(2))
        weight = laid(to_device, draw.quick(hidden, dtype=dtype), choice["weights"])
        there = other = laid(to_device, x, choice["layout"])
        if choice["residual"] != "x itself":
            other = laid(to_device, residual, choice["residual"])
        return there, other, weight, choice["eps"]

    return Sample(f"drawn: {dict(choice)}", build)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    terms=lambda facts: int(facts["hidden"]),
)
