"""Tiny Llama-like models with random weights, and the comparison with plain transformers."""

from __future__ import annotations

import copy

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from vllm_adapter.engine.integrations.transformers.replacement_check import cache_argument

PAD, EOS = 0, 1
BLOCK = 16
"""Tokens of a KV block of the CPU adapter."""
CACHE = cache_argument(LlamaForCausalLM)
"""What the installed transformers calls the cache, in arguments and in outputs."""
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}


def checkpoint_activations(model):
    """By the method's name in the installed transformers; the older one warns from 5.24 on."""
    newer = getattr(model, "activation_checkpointing_enable", None)
    (newer or model.gradient_checkpointing_enable)()


def tiny(
    kind="llama", *, heads=6, kv_heads=2, head_size=32, dtype=torch.float32, seed=0, **config
):
    """A model of two layers whose logits are far enough apart for greedy tokens to be stable."""
    torch.manual_seed(seed)
    model_class, config_class = KINDS[kind]
    model = model_class(
        config_class(
            **{
                "vocab_size": 128,
                "hidden_size": heads * head_size,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "head_dim": head_size,
                "max_position_embeddings": 256,
                "pad_token_id": PAD,
                "eos_token_id": EOS,
                "bos_token_id": 2,
                "initializer_range": 0.2,
                "tie_word_embeddings": False,
                "attn_implementation": "sdpa",
            }
            | config
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype).eval()


def twins(kind="llama", **config):
    """Two equal models that share nothing."""
    model = tiny(kind, **config)
    return model, copy.deepcopy(model)


def batch(*lengths, side="left", seed=1):
    """Random prompts of these lengths, padded at one side: (ids, mask)."""
    draw = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.full((len(lengths), width), PAD)
    mask = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        place = slice(width - length, width) if side == "left" else slice(0, length)
        ids[row, place] = torch.randint(3, 128, (length,), generator=draw)
        mask[row, place] = 1
    return {"input_ids": ids, "attention_mask": mask}


def greedy(model, given, new=12, **options):
    """generate() without sampling, and without an end unless `eos_token_id` is given."""
    options = {"eos_token_id": None, "pad_token_id": PAD} | options
    return model.generate(**given, max_new_tokens=new, do_sample=False, **options)
