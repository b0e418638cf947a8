"""fused_add_rms_norm: s = x + residual, then (rms_norm(s), s)."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import Fn, OpSpec, dtype_name

Pair = tuple[torch.Tensor, torch.Tensor]


def _facts_of(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> dict[str, FactValue]:
    return {"dtype": dtype_name(x), "hidden": x.shape[-1]}


def _compose(norm: Fn) -> Fn:
    def composed(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> Pair:
        """x, residual: [..., hidden], weight: [hidden] -> two of [..., hidden]."""
        total = x + residual
        return norm(total, weight, eps), total

    return composed


SPEC: Final = OpSpec(
    operator=OPERATORS["fused_add_rms_norm"],
    schema="(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    fake=lambda x, residual, weight, eps: (x.new_empty(x.shape), x.new_empty(x.shape)),
    generic=generic.fused_add_rms_norm,
    facts_of=_facts_of,
    key_of=lambda x, residual, weight, eps: (x.dtype, x.device, x.shape[-1]),
    compose=_compose,
)
