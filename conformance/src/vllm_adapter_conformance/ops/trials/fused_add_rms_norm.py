"""fused_add_rms_norm: s = x + residual, then (rms_norm(s), s)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import Draw, columns, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Put, Sample, Trial
from vllm_adapter_conformance.ops.trials import rms_norm


def _reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> Sequence[Expected]:
    total = x + residual
    return [rms_norm.expected(total, weight, eps), Expected(total, total.abs())]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def sample(name: str, rows: tuple[int, ...], scale: float, strided: bool) -> Sample:
        def build(put: Put) -> tuple[object, ...]:
            draw = Draw(seed, "fused_add_rms_norm", name)
            wide = draw.normal(*rows, hidden * (2 if strided else 1), dtype=dtype, scale=scale)
            residual = draw.normal(*rows, hidden, dtype=dtype, scale=scale)
            weight = draw.normal(hidden, dtype=dtype)
            return columns(put, wide, 0, hidden), put(residual), put(weight), rms_norm.EPS

        return Sample(name, build)

    return [sample(*row) for row in rms_norm.ROWS]


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    terms=lambda facts: int(facts["hidden"]),
)
