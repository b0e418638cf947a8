"""What the operators of layers are to torch: products, norms, gates, tables, the cache."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import Fn, OpSpec, dtype_name

Facts = dict[str, FactValue]
Pair = tuple[torch.Tensor, torch.Tensor]


def _linear_fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    # Never the weight's shape: prepare_weights may have packed it.
    return x.new_empty((*x.shape[:-1], out_features))


def _linear_facts(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> Facts:
    return {
        "dtype": dtype_name(x),
        "in_features": x.shape[-1],
        "out_features": out_features,
        "bias": bias is not None,
    }


LINEAR: Final = OpSpec(
    operator=OPERATORS["linear"],
    schema="(Tensor x, Tensor weight, Tensor? bias, int out_features) -> Tensor",
    fake=_linear_fake,
    generic=generic.linear,
    facts_of=_linear_facts,
    key_of=lambda x, weight, bias, out: (x.dtype, x.device, x.shape[-1], out, bias is None),
)
"""x @ weight.T + bias."""


def _quantized_facts(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_features: int,
    scheme: str,
) -> Facts:
    return {**_linear_facts(x, weight, bias, out_features), "scheme": scheme}


QUANTIZED_LINEAR: Final = OpSpec(
    operator=OPERATORS["quantized_linear"],
    schema="(Tensor x, Tensor weight, Tensor scale, Tensor? zero, Tensor? bias, "
    "int out_features, str scheme) -> Tensor",
    fake=lambda x, weight, scale, zero, bias, out, scheme: x.new_empty((*x.shape[:-1], out)),
    generic=generic.quantized_linear,
    facts_of=_quantized_facts,
    key_of=lambda x, weight, scale, zero, bias, out, scheme: (
        *(x.dtype, x.device, x.shape[-1], out, bias is None, scheme),
    ),
)
"""x @ (weight * scale + zero).T + bias."""
RMS_NORM: Final = OpSpec(
    operator=OPERATORS["rms_norm"],
    schema="(Tensor x, Tensor weight, float eps) -> Tensor",
    fake=lambda x, weight, eps: x.new_empty(x.shape),
    generic=generic.rms_norm,
    facts_of=lambda x, weight, eps: {"dtype": dtype_name(x), "hidden": x.shape[-1]},
    key_of=lambda x, weight, eps: (x.dtype, x.device, x.shape[-1]),
)
"""x / sqrt(mean(x^2) + eps) * weight."""


def _add_norm_of(norm: Fn) -> Fn:
    def composed(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> Pair:
        """x, residual: [..., hidden], weight: [hidden] -> two of [..., hidden]."""
        total = x + residual
        return norm(total, weight, eps), total

    return composed


FUSED_ADD_RMS_NORM: Final = OpSpec(
    operator=OPERATORS["fused_add_rms_norm"],
    schema="(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    fake=lambda x, residual, weight, eps: (x.new_empty(x.shape), x.new_empty(x.shape)),
    generic=generic.fused_add_rms_norm,
    facts_of=lambda x, residual, weight, eps: {"dtype": dtype_name(x), "hidden": x.shape[-1]},
    key_of=lambda x, residual, weight, eps: (x.dtype, x.device, x.shape[-1]),
    compose=_add_norm_of,
)
"""s = x + residual, then (rms_norm(s), s)."""


def _layer_norm_facts(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> Facts:
    return {"dtype": dtype_name(x), "hidden": x.shape[-1], "bias": bias is not None}


LAYER_NORM: Final = OpSpec(
    operator=OPERATORS["layer_norm"],
    schema="(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor",
    fake=lambda x, weight, bias, eps: x.new_empty(x.shape),
    generic=generic.layer_norm,
    facts_of=_layer_norm_facts,
    key_of=lambda x, weight, bias, eps: (x.dtype, x.device, x.shape[-1], bias is None),
)
"""(x - mean) / sqrt(var + eps) * weight + bias."""
SILU_AND_MUL: Final = OpSpec(
    operator=OPERATORS["silu_and_mul"],
    schema="(Tensor x) -> Tensor",
    fake=lambda x: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),
    generic=generic.silu_and_mul,
    facts_of=lambda x: {"dtype": dtype_name(x), "hidden": x.shape[-1] // 2},
    key_of=lambda x: (x.dtype, x.device, x.shape[-1]),
)
"""silu(first half) * second half."""
GELU: Final = OpSpec(
    operator=OPERATORS["gelu"],
    schema="(Tensor x, bool tanh) -> Tensor",
    fake=lambda x, tanh: x.new_empty(x.shape),
    generic=generic.gelu,
    facts_of=lambda x, tanh: {"dtype": dtype_name(x), "hidden": x.shape[-1], "tanh": tanh},
    key_of=lambda x, tanh: (x.dtype, x.device, x.shape[-1], tanh),
)
"""x * Phi(x)."""
GELU_AND_MUL: Final = OpSpec(
    operator=OPERATORS["gelu_and_mul"],
    schema="(Tensor x, bool tanh) -> Tensor",
    fake=lambda x, tanh: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),
    generic=generic.gelu_and_mul,
    facts_of=lambda x, tanh: {"dtype": dtype_name(x), "hidden": x.shape[-1] // 2, "tanh": tanh},
    key_of=lambda x, tanh: (x.dtype, x.device, x.shape[-1], tanh),
)
"""gelu(first half) * second half."""
EMBEDDING: Final = OpSpec(
    operator=OPERATORS["embedding"],
    schema="(Tensor ids, Tensor weight) -> Tensor",
    fake=lambda ids, weight: weight.new_empty((*ids.shape, weight.shape[-1])),
    generic=generic.embedding,
    facts_of=lambda ids, weight: {"dtype": dtype_name(weight), "hidden": weight.shape[-1]},
    key_of=lambda ids, weight: (weight.dtype, weight.device, weight.shape[-1]),
)
"""Rows of a table, by their numbers."""


def _rotary_facts(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> Facts:
    return {
        "dtype": dtype_name(query),
        "head_size": query.shape[-1],
        "interleaved": interleaved,
        "partial": bool(cos_sin_cache.shape[-1] != query.shape[-1]),
    }


def _rotary_key(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> tuple[object, ...]:
    return query.dtype, query.device, query.shape[-1], cos_sin_cache.shape[-1], interleaved


ROTARY_EMBEDDING: Final = OpSpec(
    operator=OPERATORS["rotary_embedding"],
    schema="(Tensor positions, Tensor(a!) query, Tensor(b!) key, Tensor cos_sin_cache, "
    "bool interleaved) -> ()",
    fake=lambda positions, query, key, cos_sin_cache, interleaved: None,
    generic=generic.rotary_embedding,
    facts_of=_rotary_facts,
    key_of=_rotary_key,
    mutates=(1, 2),
)
"""Rotates query and key in place by their positions."""


def _cache_facts(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> Facts:
    return {
        "dtype": dtype_name(key),
        "head_size": key.shape[-1],
        "block_size": key_cache.shape[1],
        "kv_dtype": "auto" if key_cache.dtype == key.dtype else dtype_name(key_cache),
    }


def _cache_key(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, *rest: torch.Tensor
) -> tuple[object, ...]:
    return key.dtype, key.device, key_cache.dtype, key.shape[-1], key_cache.shape[1]


RESHAPE_AND_CACHE: Final = OpSpec(
    operator=OPERATORS["reshape_and_cache"],
    schema="(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping) -> ()",
    fake=lambda key, value, key_cache, value_cache, slot_mapping: None,
    generic=generic.reshape_and_cache,
    facts_of=_cache_facts,
    key_of=_cache_key,
    mutates=(2, 3),
)
"""Writes keys and values into the slots of a paged KV cache."""
