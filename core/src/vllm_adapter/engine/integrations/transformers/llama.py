"""What a Llama-like transformers model is made of, as our layers take it."""

from __future__ import annotations

from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.layers import DecoderLayer, LayerShape, merge
from vllm_adapter.engine.integrations.transformers.cache import PackedStep
from vllm_adapter.engine.kv_cache import PagedKVCache
from vllm_adapter.errors import UnsupportedModel
from vllm_adapter.settings import Settings

MODEL_TYPES: Final = ("llama",)
STATIC_ROPE: Final = ("default", "linear", "llama3", "yarn")
"""Rope types whose frequencies never change while running, so that one table serves."""


class Layer(torch.nn.Module):
    """Our decoder layer in the place of transformers': padded in, padded out."""

    def __init__(self, inner: DecoderLayer, index: int, cos_sin_cache: torch.Tensor) -> None:
        super().__init__()
        self.inner, self.index = inner, index
        self.cos_sin_cache = cos_sin_cache

    def forward(
        self, hidden_states: torch.Tensor, va_step: PackedStep, **kwargs: Any
    ) -> torch.Tensor:
        """[B, Q, hidden] -> the same. `va_step` comes from the hook on the base model."""
        packed = self.inner(
            va_step.pack(hidden_states),
            va_step.positions,
            self.cos_sin_cache,
            va_step.layers[self.index],
            va_step.step,
        )
        return va_step.unpack(packed, hidden_states)


def check_supported(base: Any) -> None:
    """Whether the base model can be rebuilt from our layers.

    Raises:
        UnsupportedModel: the first thing that we do not serve.
    """
    config = base.config
    faults = [
        (config.model_type not in MODEL_TYPES, f"a {config.model_type} model"),
        (getattr(config, "hidden_act", None) != "silu", f"the activation {config.hidden_act}"),
        (
            base.rotary_emb.rope_type not in STATIC_ROPE,
            f"rope of type {base.rotary_emb.rope_type}, which changes while it runs",
        ),
        (
            any(
                type(module) is not torch.nn.Linear
                for layer in base.layers
                for module in (layer.self_attn.q_proj, layer.mlp.down_proj)
            ),
            "quantised or otherwise replaced linear layers",
        ),
    ]
    for holds, what in faults:
        if holds:
            raise UnsupportedModel(
                f"{what} is not served",
                hint=f"adapt() serves plain models of type {', '.join(MODEL_TYPES)}",
            )


def shape_of(config: Any) -> LayerShape:
    """The layers' shape, from the model's configuration."""
    head_size = getattr(config, "head_dim", None)
    return LayerShape(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=head_size or config.hidden_size // config.num_attention_heads,
        eps=config.rms_norm_eps,
    )


def build_layer(
    source: Any, shape: LayerShape, kv: PagedKVCache, settings: Settings
) -> DecoderLayer:
    """Our layer over the weights of transformers' `LlamaDecoderLayer`, sharing their memory."""
    attention, mlp = source.self_attn, source.mlp
    return DecoderLayer(
        shape,
        kv,
        input_norm=source.input_layernorm.weight,
        qkv=merge([attention.q_proj, attention.k_proj, attention.v_proj]),
        out=(attention.o_proj.weight, attention.o_proj.bias),
        post_norm=source.post_attention_layernorm.weight,
        gate_up=merge([mlp.gate_proj, mlp.up_proj]),
        down=(mlp.down_proj.weight, mlp.down_proj.bias),
        settings=settings,
    )


def rope_table(base: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[positions, head_size]: cos, then sin, from the model's own frequencies and scaling."""
    positions = torch.arange(base.config.max_position_embeddings, device=device)[None]
    like = torch.empty(0, dtype=dtype, device=device)
    cos, sin = base.rotary_emb(like, position_ids=positions)
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1).contiguous()
