"""A tiny BERT with random weights."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel


def tiny(**config):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 99,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 40,
        "initializer_range": 0.2,
    }
    model = BertModel(BertConfig(**sizes | config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()
