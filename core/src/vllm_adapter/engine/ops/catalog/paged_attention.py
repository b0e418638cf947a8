"""paged_attention: causal attention of packed queries over a paged KV cache."""

from __future__ import annotations

from typing import Any, Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name


def _facts_of(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    plan: int,
) -> dict[str, FactValue]:
    return {
        "dtype": dtype_name(query),
        "head_size": query.shape[2],
        "block_size": key_cache.shape[1],
        "gqa_ratio": query.shape[1] // key_cache.shape[2],
        "window": window,
        "soft_cap": soft_cap,
        "kv_dtype": "auto" if key_cache.dtype == query.dtype else dtype_name(key_cache),
    }


def _key_of(query: torch.Tensor, key_cache: torch.Tensor, *rest: Any) -> tuple[object, ...]:
    *_, window, soft_cap, _ = rest
    shape = query.shape[1:], key_cache.shape[1:3]
    return query.dtype, query.device, key_cache.dtype, *shape, window, soft_cap


SPEC: Final = OpSpec(
    operator=OPERATORS["paged_attention"],
    schema="(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor seq_lens, Tensor query_start_loc, float scale, int window, float soft_cap, "
    "int plan) -> Tensor",
    fake=lambda query, *rest: query.new_empty(query.shape),
    generic=generic.paged_attention,
    facts_of=_facts_of,
    key_of=_key_of,
)
