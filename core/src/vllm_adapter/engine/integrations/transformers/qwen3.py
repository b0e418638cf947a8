"""Qwen3: a Llama that norms each head of queries and keys, some layers with a window."""

from __future__ import annotations

from typing import Any

from vllm_adapter.engine.integrations.transformers.decoder import LayerOptions, norm_of, window_of


def options(layer: Any) -> LayerOptions:
    """Of transformers' `Qwen3DecoderLayer`."""
    attention = layer.self_attn
    return LayerOptions(
        head_norms=(norm_of(attention.q_norm), norm_of(attention.k_norm)), window=window_of(layer)
    )
