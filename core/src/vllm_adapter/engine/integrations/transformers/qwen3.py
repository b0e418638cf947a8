"""Qwen3: a Llama that norms each head of queries and keys, some layers with a window."""

from __future__ import annotations

from typing import Any

from vllm_adapter.engine.integrations.transformers.decoder import LayerOptions, window_of


def options(layer: Any) -> LayerOptions:
    """Of transformers' `Qwen3DecoderLayer`; its head norms share the eps of the others."""
    attention = layer.self_attn
    return LayerOptions(
        head_norms=(attention.q_norm.weight, attention.k_norm.weight), window=window_of(layer)
    )
