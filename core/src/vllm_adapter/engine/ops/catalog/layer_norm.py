"""layer_norm: (x - mean) / sqrt(var + eps) * weight + bias."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name


def _facts_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> dict[str, FactValue]:
    return {"dtype": dtype_name(x), "hidden": x.shape[-1], "bias": bias is not None}


SPEC: Final = OpSpec(
    operator=OPERATORS["layer_norm"],
    schema="(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor",
    fake=lambda x, weight, bias, eps: x.new_empty(x.shape),
    generic=generic.layer_norm,
    facts_of=_facts_of,
    key_of=lambda x, weight, bias, eps: (x.dtype, x.device, x.shape[-1], bias is None),
)
