"""Qwen3-Embedding-0.6B as published (known, and not downloaded), with random weights."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3Model


def model():
    """Its body: 28 layers, 596 million parameters, drawn from a seed."""
    config = Qwen3Config(
        vocab_size=151669,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
        use_cache=False,
    )
    torch.manual_seed(0)
    made = Qwen3Model(config).eval()
    assert 595_000_000 < sum(p.numel() for p in made.parameters()) < 597_000_000
    return made
