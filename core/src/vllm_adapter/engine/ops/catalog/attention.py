"""What the operators of attention are to torch: over packed sequences, and over a paged cache."""

from __future__ import annotations

from typing import Any, Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name


def _packed_facts(
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


def _packed_key(query: torch.Tensor, key: torch.Tensor, *rest: Any) -> tuple[object, ...]:
    *_, causal, window, soft_cap = rest
    shape = query.shape[1:], key.shape[1]
    return query.dtype, query.device, *shape, causal, window, soft_cap


ATTENTION: Final = OpSpec(
    operator=OPERATORS["attention"],
    schema="(Tensor query, Tensor key, Tensor value, Tensor query_start_loc, float scale, "
    "bool causal, int window, float soft_cap) -> Tensor",
    fake=lambda query, *rest: query.new_empty(query.shape),
    generic=generic.attention,
    facts_of=_packed_facts,
    key_of=_packed_key,
)
"""Packed sequences over themselves, without a cache."""


def _paged_facts(
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


def _paged_key(query: torch.Tensor, key_cache: torch.Tensor, *rest: Any) -> tuple[object, ...]:
    *_, window, soft_cap, _ = rest
    shape = query.shape[1:], key_cache.shape[1:3]
    return query.dtype, query.device, key_cache.dtype, *shape, window, soft_cap


PAGED_ATTENTION: Final = OpSpec(
    operator=OPERATORS["paged_attention"],
    schema="(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor seq_lens, Tensor query_start_loc, float scale, int window, float soft_cap, "
    "int plan) -> Tensor",
    fake=lambda query, *rest: query.new_empty(query.shape),
    generic=generic.paged_attention,
    facts_of=_paged_facts,
    key_of=_paged_key,
)
"""Causal attention of packed queries over a paged KV cache."""
