"""vLLM's attention over paged_attention and reshape_and_cache.

A layer's cache is vLLM's logical view [blocks, kv_heads, block, K|V], whatever its strides; our
operators take key and value as [blocks, block, kv_heads, head_size], which are views of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig, get_current_vllm_config, get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import AttentionSpec

from vllm_adapter.engine.integrations.vllm import policy, release_differences
from vllm_adapter.engine.integrations.vllm.eras import CacheGeometry
from vllm_adapter.engine.integrations.vllm.select import (
    DECODER,
    NAME,
    attend_facts,
    write_facts,
)
from vllm_adapter.engine.ops.bind import Binding
from vllm_adapter.engine.ops.spec import Facts, Fn, OpCase
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.errors import UnsupportedCase

# upstream: vllm@0.32 model_executor/layers/attention/attention.py looks a backend's name up there
register_backend(AttentionBackendEnum.CUSTOM, DECODER)


@dataclass(frozen=True, slots=True)
class PortableMetadata(AttentionMetadata):
    """A step as our operators take it, for the layers of one KV cache group."""

    step: Step
    tokens: int
    """Rows of the batch that are tokens; those after them are padding."""
    attend: Mapping[OpCase, tuple[Fn, int]]
    """What runs paged_attention, and its handle, by the case of the layer."""


class PortableBuilder(AttentionMetadataBuilder[PortableMetadata]):
    """Makes the step, and plans it once for all layers of equal case in the group."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._block_size = kv_cache_spec.block_size
        found = get_layers_from_vllm_config(vllm_config, AttentionLayerBase, layer_names)
        bindings: dict[OpCase, Binding] = {}
        for layer in found.values():
            # The builder owns the handles: another group's blocks need a plan of their own.
            binding = layer.impl.bind(self._block_size, owner=self)
            bindings[binding.case] = binding
        self._bindings = list(bindings.values())
        self._attend = {b.case: (policy.run_of(b), b.handle) for b in self._bindings}

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PortableMetadata:
        """The step moment. Runs on the host, outside of any graph."""
        common = common_attn_metadata
        if common.causal is not True:
            raise UnsupportedCase(
                "paged_attention is causal, and this batch is not",
                hint="choose vLLM's own backend with --attention-backend",
            )
        starts = common.query_start_loc_cpu.tolist()
        query_lens = [stop - start for start, stop in itertools.pairwise(starts)]
        context_lens = release_differences.context_lens(common)
        step = Step(
            tuple(query_lens),
            tuple(context_lens),
            slot_mapping=common.slot_mapping[: starts[-1]],
            block_table=common.block_table_tensor,
            seq_lens=common.seq_lens,
            query_start_loc=common.query_start_loc,
            positions=_positions(query_lens, context_lens).to(common.slot_mapping.device),
            block_size=self._block_size,
        )
        for binding in self._bindings:
            binding.plan(step)
        return PortableMetadata(step, starts[-1], self._attend)


class PortableImpl(AttentionImpl[PortableMetadata]):
    """One layer: binds when it is built, so that a refusal comes before weights are loaded."""

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
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        wishes = [name for name, value in extra.items() if value is not None]
        if alibi_slopes is not None:
            wishes.append("alibi_slopes")
        if wishes:
            raise UnsupportedCase(
                f"paged_attention has no {', '.join(wishes)}",
                hint="choose vLLM's own backend with --attention-backend",
            )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sliding_window = sliding_window
        self._window, self._soft_cap = sliding_window or 0, float(logits_soft_cap or 0.0)
        # upstream: vllm@0.32 attention.py: the default dtype is the model's while it is built
        self._dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        self.bind(get_current_vllm_config().cache_config.block_size)

    def bind(self, block_size: int, owner: object = None) -> Binding:
        """Binds both operators for caches of that block size; gives the one that is planned.

        Raises:
            UnsupportedCase: no adapter runs this layer.
        """
        attend: Facts = attend_facts(
            dtype=self._dtype,
            head_size=self.head_size,
            block_size=block_size,
            gqa_ratio=self.num_heads // self.num_kv_heads,
            window=self._window,
            soft_cap=self._soft_cap,
            kv_cache_dtype=self.kv_cache_dtype,
        )
        self._write = policy.run_of(
            policy.require_adapter_kernel("reshape_and_cache", write_facts(attend))
        )
        binding = policy.require_adapter_kernel("paged_attention", attend, owner)
        self._case = binding.case
        return binding

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes a step's keys and values[T, KH, D]; slots below 0 are padding."""
        tokens = slot_mapping.shape[0]
        self._write(key[:tokens], value[:tokens], *self._caches(kv_cache), slot_mapping)

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: PortableMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of query[T, H, D] into `output`; without metadata vLLM measures memory."""
        if output_scale is not None or output_block_scale is not None:
            raise UnsupportedCase(
                "paged_attention does not quantise its result",
                hint="switch off vLLM's fusion of attention and quantisation",
            )
        if attn_metadata is None:
            return output.zero_()
        step, tokens = attn_metadata.step, attn_metadata.tokens
        run, handle = attn_metadata.attend[self._case]
        shape = (tokens, self.num_heads, self.head_size)
        result = run(
            query[:tokens].view(shape),
            *self._caches(kv_cache),
            step.block_table,
            step.seq_lens,
            step.query_start_loc,
            self.scale,
            self._window,
            self._soft_cap,
            handle,
        )
        output[:tokens].view(shape).copy_(result)
        return output

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = kv_cache.transpose(1, 2)
        return both[..., : self.head_size], both[..., self.head_size :]


class PortableBackend(CacheGeometry, AttentionBackend):
    """What vLLM asks about our attention."""

    forward_includes_kv_cache_update = False
    supported_dtypes: ClassVar = [torch.float32, torch.float16, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        """A member of AttentionBackendEnum."""
        return NAME

    @staticmethod
    def get_impl_cls() -> type[PortableImpl]:
        """The layer."""
        return PortableImpl

    @staticmethod
    def get_builder_cls() -> type[PortableBuilder]:
        """The step."""
        return PortableBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: object = None) -> list[Any]:
        """Multiples of what the adapter's descriptor says."""
        chosen = policy.in_use()
        multiple = chosen.capability.kv.block_multiple if chosen else None
        return [MultipleOf(multiple or 1)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        """The descriptor's: vLLM's would be its default, wherever that is a multiple."""
        chosen = policy.in_use()
        if chosen is None or chosen.has_vllms:
            found: int = super().get_preferred_block_size(default_block_size)
            return found
        return chosen.capability.kv.block_size

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """`select.backend_for` has bound the window before this is asked."""
        return True


def _positions(query_lens: list[int], context_lens: list[int]) -> torch.Tensor:
    """int64[T] place of each new token in its sequence."""
    spans = [
        torch.arange(context - query, context)
        for query, context in zip(query_lens, context_lens, strict=True)
    ]
    return torch.cat(spans) if spans else torch.empty(0, dtype=torch.int64)
