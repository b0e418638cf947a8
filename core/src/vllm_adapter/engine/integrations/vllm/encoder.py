"""vLLM's encoder-only attention over the operator `attention`: no cache, nothing to plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from vllm_adapter.engine.integrations.vllm import policy
from vllm_adapter.engine.integrations.vllm.select import NAME, encoder_facts
from vllm_adapter.errors import UnsupportedCase


@dataclass(frozen=True, slots=True)
class EncoderMetadata(AttentionMetadata):
    """Where each packed sequence starts, and how many rows of the batch are tokens."""

    query_start_loc: torch.Tensor
    tokens: int


class EncoderBuilder(AttentionMetadataBuilder[EncoderMetadata]):
    """Takes the batch as it is."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> EncoderMetadata:
        """The step moment."""
        common = common_attn_metadata
        return EncoderMetadata(common.query_start_loc, int(common.query_start_loc_cpu[-1]))


class EncoderImpl(AttentionImpl[EncoderMetadata]):
    """One layer: every token of a sequence sees every other."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "encoder_only",
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        given = {"alibi_slopes": alibi_slopes, "sliding_window": sliding_window, **extra}
        wishes = [name for name, value in given.items() if value is not None]
        if wishes:
            raise UnsupportedCase(
                f"attention of an encoder has no {', '.join(wishes)}",
                hint="choose vLLM's own backend with --attention-backend",
            )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self._soft_cap = float(logits_soft_cap or 0.0)
        # upstream: vllm@0.32 attention.py: the default dtype is the model's while it is built
        facts = encoder_facts(
            dtype=str(torch.get_default_dtype()).removeprefix("torch."),
            head_size=head_size,
            gqa_ratio=num_heads // self.num_kv_heads,
            soft_cap=self._soft_cap,
        )
        self._run = policy.run_of(policy.require_adapter_kernel("attention", facts))

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: EncoderMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of query[T, H, D] into `output`; without metadata vLLM measures memory."""
        if output_scale is not None or output_block_scale is not None:
            raise UnsupportedCase(
                "attention does not quantise its result",
                hint="switch off vLLM's fusion of attention and quantisation",
            )
        if attn_metadata is None:
            return output.zero_()
        tokens = attn_metadata.tokens
        result = self._run(
            query[:tokens],
            key[:tokens],
            value[:tokens],
            attn_metadata.query_start_loc,
            self.scale,
            False,
            0,
            self._soft_cap,
        )
        output[:tokens].view(result.shape).copy_(result)
        return output


class EncoderBackend(AttentionBackend):
    """What vLLM asks about our attention without a cache."""

    forward_includes_kv_cache_update = True  # there is none to update

    @staticmethod
    def get_name() -> str:
        """A member of AttentionBackendEnum."""
        return NAME

    @staticmethod
    def get_impl_cls() -> type[EncoderImpl]:
        """The layer."""
        return EncoderImpl

    @staticmethod
    def get_builder_cls() -> type[EncoderBuilder]:
        """The step."""
        return EncoderBuilder

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Encoders alone."""
        return attn_type == "encoder_only"
