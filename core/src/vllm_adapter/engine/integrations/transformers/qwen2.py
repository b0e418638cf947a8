"""Qwen2: a Llama whose queries, keys and values have a bias, some layers with a window."""

from __future__ import annotations

from typing import Any

from vllm_adapter.engine.integrations.transformers.decoder import LayerOptions, window_of


def options(layer: Any) -> LayerOptions:
    """Of transformers' `Qwen2DecoderLayer`."""
    return LayerOptions(window=window_of(layer))
