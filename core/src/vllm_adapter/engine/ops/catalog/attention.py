"""attention: packed sequences over themselves, without a cache."""

from __future__ import annotations

from typing import Any, Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name


def _facts_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> dict[str, FactValue]:
    return {
        "dtype": dtype_name(query),
        "head_size": query.shape[2],
        "gqa_ratio": query.shape[1] // key.shape[1],
        "causal": causal,
        "window": window,
        "soft_cap": soft_cap,
    }


def _key_of(query: torch.Tensor, key: torch.Tensor, *rest: Any) -> tuple[object, ...]:
    *_, causal, window, soft_cap = rest
    shape = query.shape[1:], key.shape[1]
    return query.dtype, query.device, *shape, causal, window, soft_cap


SPEC: Final = OpSpec(
    operator=OPERATORS["attention"],
    schema="(Tensor query, Tensor key, Tensor value, Tensor query_start_loc, float scale, "
    "bool causal, int window, float soft_cap) -> Tensor",
    fake=lambda query, *rest: query.new_empty(query.shape),
    generic=generic.attention,
    facts_of=_facts_of,
    key_of=_key_of,
)
