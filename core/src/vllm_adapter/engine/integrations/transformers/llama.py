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
    fault = _fault(base)
    if fault:
        raise UnsupportedModel(
            f"{fault} is not served",
            hint=f"adapt() serves plain models of type {', '.join(MODEL_TYPES)}",
        )


def _fault(base: Any) -> str | None:
    config: Any = getattr(base, "config", None)
    model_type = getattr(config, "model_type", None)
    if model_type not in MODEL_TYPES:
        return f"a {model_type or type(base).__name__} model"
    if config.hidden_act != "silu":
        return f"the activation {config.hidden_act}"
    if base.rotary_emb.rope_type not in STATIC_ROPE:
        return f"rope of type {base.rotary_emb.rope_type}, which changes while it runs,"
    if any(type(linear) is not torch.nn.Linear for layer in base.layers for linear in _of(layer)):
        return "a model with quantised or otherwise replaced linear layers"
    return None


def _of(layer: Any) -> tuple[Any, ...]:
    """Every linear of transformers' `LlamaDecoderLayer`, those that are merged first."""
    attention, mlp = layer.self_attn, layer.mlp
    merged = attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj
    return *merged, attention.o_proj, mlp.down_proj


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
