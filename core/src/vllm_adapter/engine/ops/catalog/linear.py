"""linear: x @ weight.T + bias."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name


def _fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    # Never the weight's shape: prepare_weights may have packed it.
    return x.new_empty((*x.shape[:-1], out_features))


def _facts_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> dict[str, FactValue]:
    return {
        "dtype": dtype_name(x),
        "in_features": x.shape[-1],
        "out_features": out_features,
        "bias": bias is not None,
    }


def _key_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> tuple[object, ...]:
    return x.dtype, x.device, x.shape[-1], out_features, bias is None


SPEC: Final = OpSpec(
    operator=OPERATORS["linear"],
    schema="(Tensor x, Tensor weight, Tensor? bias, int out_features) -> Tensor",
    fake=_fake,
    generic=generic.linear,
    facts_of=_facts_of,
    key_of=_key_of,
)
