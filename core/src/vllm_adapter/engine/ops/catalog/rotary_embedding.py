"""rotary_embedding: rotates query and key in place by their positions."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name


def _facts_of(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> dict[str, FactValue]:
    return {
        "dtype": dtype_name(query),
        "head_size": query.shape[-1],
        "interleaved": interleaved,
        "partial": bool(cos_sin_cache.shape[-1] != query.shape[-1]),
    }


def _key_of(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> tuple[object, ...]:
    return query.dtype, query.device, query.shape[-1], cos_sin_cache.shape[-1], interleaved


SPEC: Final = OpSpec(
    operator=OPERATORS["rotary_embedding"],
    schema="(Tensor positions, Tensor(a!) query, Tensor(b!) key, Tensor cos_sin_cache, "
    "bool interleaved) -> ()",
    fake=lambda positions, query, key, cos_sin_cache, interleaved: None,
    generic=generic.rotary_embedding,
    facts_of=_facts_of,
    key_of=_key_of,
    mutates=(1, 2),
)
