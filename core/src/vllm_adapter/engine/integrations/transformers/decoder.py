"""What Llama-like decoders share: checks, shapes, our layers over transformers' weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.layers import (
    DecoderLayer,
    LayerShape,
    LinearMaker,
    Norm,
    Product,
    RMSNorm,
    merge,
    plain_linear,
)
from vllm_adapter.engine.integrations.quantized import Quantizer
from vllm_adapter.engine.integrations.transformers.cache import PackedStep
from vllm_adapter.engine.integrations.transformers.guard import (
    PlacedLinear,
    ReplacementModule,
    refuse,
    refuse_mode_and_dtype,
)
from vllm_adapter.engine.integrations.transformers.place import Replacement
from vllm_adapter.engine.integrations.transformers.stock import ReplacedParts, is_plain_linear
from vllm_adapter.engine.kv_cache import PagedKVCache
from vllm_adapter.settings import Settings

TAKEN: Final = ReplacedParts(kept=frozenset({"embed_tokens"}), frames=frozenset({"layers"}))
STATIC_ROPE: Final = ("default", "linear", "llama3", "yarn")
"""Rope types whose frequencies never change while running, so that one table serves."""


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """What one layer of a family has beyond a Llama's."""

    head_norms: tuple[Norm, Norm] | None = None
    window: int = 0


Family = Callable[[Any], LayerOptions]
"""transformers' decoder layer -> its options: all that a family's file has to say."""


class PaddedDecoderLayer(ReplacementModule, torch.nn.Module):
    """Our decoder layer in the place of transformers': padded in, padded out."""

    def __init__(self, inner: DecoderLayer, index: int) -> None:
        super().__init__()
        self.inner, self.index = inner, index

    def forward(
        self, hidden_states: torch.Tensor, va_step: PackedStep | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """[B, Q, hidden] -> the same. `va_step` comes from the hook on the base model."""
        if va_step is None:
            refuse("calling a layer outside of the model's forward")
        refuse_mode_and_dtype(self, hidden_states, self.inner.input_norm.weight)
        packed = self.inner(
            va_step.pack(hidden_states),
            va_step.positions,
            va_step.rope,
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
    if not getattr(base.config, "is_causal", True):
        return "a decoder that is not causal"
    return None


def shape_of(layer: Any) -> LayerShape:
    """The shape of transformers' decoder layer."""
    attention, head_size = layer.self_attn, layer.self_attn.head_dim
    return LayerShape(
        hidden=layer.hidden_size,
        intermediate=layer.mlp.intermediate_size,
        heads=attention.q_proj.out_features // head_size,
        kv_heads=attention.k_proj.out_features // head_size,
        head_size=head_size,
    )


def norm_of(module: Any) -> Norm:
    """The weight and the eps of transformers' RMS norm."""
    return module.weight, module.variance_epsilon


def window_of(layer: Any) -> int:
    """Tokens that attention of transformers' layer sees, its own included; 0: all."""
    return getattr(layer.self_attn, "sliding_window", None) or 0


def replacements(
    model: Any,
    base: Any,
    kv: PagedKVCache,
    family: Family,
    settings: Settings,
    quantizer: Quantizer | None = None,
) -> list[Replacement]:
    """Our modules and their places, the layers first; nothing is replaced yet.

    The head stays as it is: its rows are the embedding's in most small models, and the last
    product decides between tokens.

    Raises:
        UnsupportedCase: an operator has no implementation for the model's shapes or dtype.
    """
    found: list[Replacement] = []
    for i, source in enumerate(base.layers):
        inner = _build_layer(source, kv, family(source), _linears(quantizer, i), settings)
        found.append((base.layers, str(i), PaddedDecoderLayer(inner, i)))
    found.append((base, "norm", PlacedRMSNorm(*norm_of(base.norm), settings)))
    found.append((base, "rotary_emb", NoRotary()))
    head = getattr(model, "lm_head", None)
    if head is not None and is_plain_linear(head, model, base.norm):
        found.append((model, "lm_head", PlacedLinear(head.weight, head.bias, settings)))
    return found


class PlacedRMSNorm(ReplacementModule, RMSNorm):
    """The last norm."""


class NoRotary(ReplacementModule, torch.nn.Module):
    """Computes nothing: our layers take the step's table."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[None, None]:
        """As long as what transformers' gives."""
        return None, None


def _linears(quantizer: Quantizer | None, index: int) -> LinearMaker:
    """What makes the products of a layer, each by its name in the model."""
    if quantizer is None:
        return plain_linear

    def named(name: str, *rest: Any) -> Product:
        return quantizer.linear(f"layers.{index}.{name}", *rest)

    return named


def _build_layer(
    source: Any,
    kv: PagedKVCache,
    options: LayerOptions,
    linear: LinearMaker,
    settings: Settings,
) -> DecoderLayer:
    """Our layer over the weights of transformers' decoder layer, sharing their memory."""
    attention, mlp = source.self_attn, source.mlp
    return DecoderLayer(
        shape_of(source),
        kv,
        input_norm=norm_of(source.input_layernorm),
        qkv=merge([attention.q_proj, attention.k_proj, attention.v_proj]),
        out=(attention.o_proj.weight, attention.o_proj.bias),
        post_norm=norm_of(source.post_attention_layernorm),
        gate_up=merge([mlp.gate_proj, mlp.up_proj]),
        down=(mlp.down_proj.weight, mlp.down_proj.bias),
        head_norms=options.head_norms,
        scale=attention.scaling,
        window=options.window,
        linear=linear,
        settings=settings,
    )
