"""Llama: the decoder that the others are distinguished from."""

from __future__ import annotations

from typing import Any

from vllm_adapter.engine.integrations.transformers.decoder import LayerOptions


def options(layer: Any) -> LayerOptions:
    """Of transformers' `LlamaDecoderLayer`: none."""
    return LayerOptions()
