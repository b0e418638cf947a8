"""The step moment of an adapted decoder: its KV cache, its plans, the cache of each batch."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from transformers.cache_utils import Cache, DynamicCache

from vllm_adapter.engine.device import OpenDevice
from vllm_adapter.engine.integrations.attention import PortableAttention
from vllm_adapter.engine.integrations.quantized import Quantizer
from vllm_adapter.engine.integrations.transformers import decoder
from vllm_adapter.engine.integrations.transformers.cache import PackedStep, PagedCache
from vllm_adapter.engine.integrations.transformers.decoder import Family
from vllm_adapter.engine.integrations.transformers.place import (
    Forward,
    Replacement,
    refuse_outputs,
)
from vllm_adapter.engine.integrations.transformers.replacement_check import (
    cache_argument,
    one_cache,
)
from vllm_adapter.engine.integrations.transformers.rope import RopeTable
from vllm_adapter.engine.kv_cache import BlockSize, PagedKVCache
from vllm_adapter.errors import UnsupportedModel
from vllm_adapter.settings import Settings

FIRST_BLOCKS: Final = 64


@dataclass(eq=False)
class DecoderSteps:
    """Makes a step of each forward, before any layer runs."""

    kv: PagedKVCache
    _attentions: Sequence[PortableAttention]
    """One of each kind of layer: those of one kind share a binding."""
    rope: RopeTable
    _parameters: Sequence[str]
    _cache: str
    """The cache's argument in the base model's forward."""
    check: Callable[[Any], None] = field(init=False)
    _replaced: weakref.WeakSet[Cache] = field(default_factory=weakref.WeakSet)

    def prepare(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        past_key_values: PagedCache | None,
        position_ids: torch.Tensor | None,
    ) -> tuple[PagedCache, PackedStep]:
        """The cache and the step of one forward, planned.

        input_ids: int64 [batch, columns]; attention_mask: [batch, all columns], 1 where real;
        position_ids: int64 [batch or 1, columns].
        """
        cache = self._cache_for(past_key_values, input_ids.shape[0])
        step = cache.advance(input_ids.shape[1], attention_mask, position_ids, self.rope)
        self._plan(step)
        return cache, step

    def before_forward(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Forward | None:
        """The pre-hook on the base model: once a forward, it makes the step and its cache."""
        given = dict(zip(self._parameters, args, strict=False)) | kwargs
        given = one_cache(given, self._cache)
        if given.get("va_step") is not None:
            return (), given
        self.check(model)
        refuse_outputs(model, given)
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if tokens is None:
            return None  # transformers says what is wrong
        # Without use_cache transformers must not see a cache that it would then carry on.
        wanted = given.get("use_cache")
        wanted = getattr(model.config, "use_cache", True) if wanted is None else wanted
        carried = given[self._cache]
        if not wanted and carried is None:
            _refuse_packing(given)
        cache, step = self.prepare(
            tokens,
            given.get("attention_mask"),
            carried,
            given.get("position_ids"),
        )
        seen = cache if wanted or carried is not None else None
        return (), given | {self._cache: seen, "va_step": step}

    def close(self) -> None:
        """Gives the KV cache's memory back to the device."""
        self.kv.close()

    def _cache_for(self, given: Cache | None, rows: int) -> PagedCache:
        if isinstance(given, PagedCache):
            if len(given.sequences) != rows:
                raise UnsupportedModel(
                    f"the cache holds {len(given.sequences)} rows and the batch has {rows}",
                    hint="start a new cache for a batch of another size",
                )
            if given.kv is not self.kv:
                raise UnsupportedModel(
                    "the cache was made by another adapted model, or before this one was adapted",
                    hint="start without past_key_values",
                )
            return given
        fresh = given is None or (
            type(given) is DynamicCache and not given.offloading and not given.get_seq_length()
        )
        if not fresh:
            raise UnsupportedModel(
                f"the {type(given).__name__} given is no empty default cache, and not served",
                hint="leave cache_implementation unset, and start from an empty cache",
            )
        if given is not None:
            if given in self._replaced:
                raise UnsupportedModel(
                    "the DynamicCache given was replaced in an earlier forward, and is empty",
                    hint="carry on with the output's past_key_values",
                )
            self._replaced.add(given)
        return PagedCache(self.kv, rows)

    def _plan(self, step: PackedStep) -> None:
        for attention in self._attentions:
            attention.plan(step.step)


def build(
    model: Any,
    base: Any,
    opened: OpenDevice,
    family: Family,
    max_kv_blocks: int | None,
    settings: Settings,
    quantizer: Quantizer | None = None,
) -> tuple[list[Replacement], DecoderSteps]:
    """Our modules for a decoder that is on the device, and its step moment.

    Raises:
        UnsupportedCase, OutOfMemory: as binding and allocating do; nothing is kept then.
    """
    shape, dtype = decoder.shape_of(base.layers[0]), base.norm.weight.dtype
    name = cache_argument(base)
    stored = dtype
    if quantizer is not None:
        stored = quantizer.kv_dtype(
            shape, opened.capability.kv.block_size, base.norm.weight, settings
        )
    size = BlockSize(
        layers=len(base.layers),
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        element_bytes=stored.itemsize,
        block_size=opened.capability.kv.block_size,
    )
    kv = PagedKVCache(
        opened.runtime,
        opened.record.index,
        size,
        stored,
        blocks=min(FIRST_BLOCKS, max_kv_blocks or FIRST_BLOCKS),
        max_blocks=max_kv_blocks,
    )
    rope = RopeTable(base.rotary_emb, shape.head_size, base.config.max_position_embeddings, dtype)
    try:
        rope.upto(1)
        replaced = decoder.replacements(model, base, kv, family, settings, quantizer)
    except BaseException:
        kv.close()
        raise
    layers = [
        module.inner for _, _, module in replaced if isinstance(module, decoder.PaddedDecoderLayer)
    ]
    kinds = {layer.attention.bindings[1]: layer.attention for layer in layers}
    parameters = list(inspect.signature(base.forward).parameters)
    return replaced, DecoderSteps(kv, list(kinds.values()), rope, parameters, name)


def _refuse_packing(given: Mapping[str, Any]) -> None:
    """transformers takes positions with jumps for several sequences in one row."""
    positions = given.get("position_ids")
    free = given.get("attention_mask") is None
    if free and positions is not None and bool((positions.diff(dim=-1) != 1).any()):
        raise UnsupportedModel(
            "several sequences packed in one row are not served",
            hint="give each sequence a row of its own, and an attention mask",
        )
