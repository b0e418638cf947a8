"""What Llama-like decoders share: checks, shapes, our layers over transformers' weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.layers import (
    DecoderLayer,
    LayerShape,
    Linear,
    RMSNorm,
    merge,
)
from vllm_adapter.engine.integrations.transformers.cache import PackedStep
from vllm_adapter.engine.integrations.transformers.place import Replacement
from vllm_adapter.engine.kv_cache import PagedKVCache
from vllm_adapter.settings import Settings

STATIC_ROPE: Final = ("default", "linear", "llama3", "yarn")
"""Rope types whose frequencies never change while running, so that one table serves."""


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """What one layer of a family has beyond a Llama's."""

    head_norms: tuple[torch.Tensor, torch.Tensor] | None = None
    window: int = 0


Family = Callable[[Any], LayerOptions]
"""transformers' decoder layer -> its options: all that a family's file has to say."""


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


def fault(base: Any) -> str | None:
    """The first thing of a decoder that our layers do not serve, or None."""
    if base.config.hidden_act != "silu":
        return f"the activation {base.config.hidden_act}"
    if base.rotary_emb.rope_type not in STATIC_ROPE:
        return f"rope of type {base.rotary_emb.rope_type}, which changes while it runs,"
    if any(type(linear) is not torch.nn.Linear for layer in base.layers for linear in _of(layer)):
        return "a model with quantised or otherwise replaced linear layers"
    return None


def _of(layer: Any) -> tuple[Any, ...]:
    """Every linear of transformers' decoder layer, those that are merged first."""
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


def window_of(layer: Any) -> int:
    """Tokens that attention of transformers' layer sees, its own included; 0: all."""
    return getattr(layer.self_attn, "sliding_window", None) or 0


def replacements(
    model: Any, base: Any, kv: PagedKVCache, family: Family, settings: Settings
) -> list[Replacement]:
    """Our modules and their places, the layers first; nothing is replaced yet.

    Raises:
        UnsupportedCase: an operator has no implementation for the model's shapes or dtype.
    """
    shape = shape_of(base.config)
    table = rope_table(base, model.dtype, kv.device)
    found: list[Replacement] = []
    for i, source in enumerate(base.layers):
        inner = _build_layer(source, shape, kv, family(source), settings)
        found.append((base.layers, str(i), Layer(inner, i, table)))
    found.append((base, "norm", RMSNorm(base.norm.weight, shape.eps, settings)))
    if type(getattr(model, "lm_head", None)) is torch.nn.Linear:
        head = Linear(model.lm_head.weight, model.lm_head.bias, settings)
        found.append((model, "lm_head", head))
    return found


def _build_layer(
    source: Any, shape: LayerShape, kv: PagedKVCache, options: LayerOptions, settings: Settings
) -> DecoderLayer:
    """Our layer over the weights of transformers' decoder layer, sharing their memory."""
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
        head_norms=options.head_norms,
        window=options.window,
        settings=settings,
    )


def rope_table(base: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[positions, head_size]: cos, then sin, from the model's own frequencies and scaling."""
    positions = torch.arange(base.config.max_position_embeddings, device=device)[None]
    like = torch.empty(0, dtype=dtype, device=device)
    cos, sin = base.rotary_emb(like, position_ids=positions)
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1).contiguous()
