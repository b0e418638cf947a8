"""fused_add_rms_norm: s = x + residual, then (rms_norm(s), s)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.catalog import rms_norm
from vllm_adapter.engine.ops.draw import Draw, columns, torch_dtype
from vllm_adapter.engine.ops.spec import Expected, Facts, Fn, OpSpec, Put, Sample, dtype_name
from vllm_adapter.operators import OPERATORS, FactValue

Pair = tuple[torch.Tensor, torch.Tensor]


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


def _facts_of(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> dict[str, FactValue]:
    return {"dtype": dtype_name(x), "hidden": x.shape[-1]}


def _compose(norm: Fn) -> Fn:
    def composed(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> Pair:
        total = x + residual
        return norm(total, weight, eps), total

    return composed


SPEC: Final = OpSpec(
    operator=OPERATORS["fused_add_rms_norm"],
    schema="(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    fake=lambda x, residual, weight, eps: (x.new_empty(x.shape), x.new_empty(x.shape)),
    reference=_reference,
    generic=generic.fused_add_rms_norm,
    facts_of=_facts_of,
    key_of=lambda x, residual, weight, eps: (x.dtype, x.device, x.shape[-1]),
    samples=_samples,
    terms=lambda facts: int(facts["hidden"]),
    compose=_compose,
)
