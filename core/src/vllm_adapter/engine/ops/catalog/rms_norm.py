"""rms_norm: x / sqrt(mean(x^2) + eps) * weight."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name


def _facts_of(x: torch.Tensor, weight: torch.Tensor, eps: float) -> dict[str, FactValue]:
    return {"dtype": dtype_name(x), "hidden": x.shape[-1]}


SPEC: Final = OpSpec(
    operator=OPERATORS["rms_norm"],
    schema="(Tensor x, Tensor weight, float eps) -> Tensor",
    fake=lambda x, weight, eps: x.new_empty(x.shape),
    generic=generic.rms_norm,
    facts_of=_facts_of,
    key_of=lambda x, weight, eps: (x.dtype, x.device, x.shape[-1]),
)
