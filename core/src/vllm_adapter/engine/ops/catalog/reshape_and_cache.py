"""reshape_and_cache: writes keys and values into the slots of a paged KV cache."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name


def _facts_of(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> dict[str, FactValue]:
    return {
        "dtype": dtype_name(key),
        "head_size": key.shape[-1],
        "block_size": key_cache.shape[1],
        "kv_dtype": "auto" if key_cache.dtype == key.dtype else dtype_name(key_cache),
    }


def _key_of(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> tuple[object, ...]:
    return key.dtype, key.device, key_cache.dtype, key.shape[-1], key_cache.shape[1]


SPEC: Final = OpSpec(
    operator=OPERATORS["reshape_and_cache"],
    schema="(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping) -> ()",
    fake=lambda key, value, key_cache, value_cache, slot_mapping: None,
    generic=generic.reshape_and_cache,
    facts_of=_facts_of,
    key_of=_key_of,
    mutates=(2, 3),
)
