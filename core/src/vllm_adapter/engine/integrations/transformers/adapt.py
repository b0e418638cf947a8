"""`adapt(model, device)`: a transformers model through an adapter's operators, and back.

The tokenizer, the chat template, sampling and the generation loop stay transformers' own; no
global of transformers is patched. Inference only.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicCache

from vllm_adapter.engine.device import OpenDevice, open_device
from vllm_adapter.engine.integrations.attention import PortableAttention
from vllm_adapter.engine.integrations.layers import Linear, RMSNorm, providers_of
from vllm_adapter.engine.integrations.transformers import llama
from vllm_adapter.engine.integrations.transformers.cache import PackedStep, PagedCache
from vllm_adapter.engine.kv_cache import BlockSize, PagedKVCache
from vllm_adapter.errors import InputError, UnsupportedModel
from vllm_adapter.settings import Settings

ATTENTION: Final = "vllm_adapter"
"""The name in transformers' AttentionInterface. It has no mask function: no 4-D mask is built."""
ATTRIBUTE: Final = "_vllm_adapter"
DEFAULT_BLOCK: Final = 16
FIRST_BLOCKS: Final = 64
Replacement = tuple[torch.nn.Module, str, Any]
"""A parent, the name of its part, and the module in that place."""


@dataclass(eq=False)
class Adapted:
    """A model in our hands: what `unadapt` needs, the KV cache, and who runs what."""

    kv: PagedKVCache
    opened: OpenDevice
    providers: Mapping[str, tuple[str, ...]]
    """Who runs each operator of the model."""
    _attention: PortableAttention
    _limit: int
    _hooks: list[Any] = field(default_factory=list)
    _replaced: weakref.WeakSet[Cache] = field(default_factory=weakref.WeakSet)
    _restore: list[Replacement] = field(default_factory=list)
    _attention_was: str | None = None
    _parameters: list[str] = field(default_factory=list)

    def prepare(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: PagedCache | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> tuple[PagedCache, PackedStep]:
        """The step moment by hand, for a compiled model, whose hook must not allocate.

        Pass the results as `past_key_values` and `va_step`.
        """
        cache = self._cache_for(past_key_values, input_ids.shape[0])
        step = cache.advance(input_ids.shape[1], attention_mask, position_ids, self._limit)
        self._plan(step)
        return cache, step

    def before_forward(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The pre-hook on the base model: once a forward, it makes the step and its cache."""
        if kwargs.get("va_step") is not None:
            return None
        given = dict(zip(self._parameters, args, strict=False)) | kwargs
        _refuse_outputs(model, given)
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if tokens is None:
            return None  # transformers says what is wrong
        # Without use_cache transformers must not see a cache that it would then carry on.
        wanted = given.get("use_cache")
        wanted = getattr(model.config, "use_cache", True) if wanted is None else wanted
        if not wanted:
            _refuse_packing(given)
        cache = self._cache_for(given.get("past_key_values"), tokens.shape[0])
        step = cache.advance(
            tokens.shape[1], given.get("attention_mask"), given.get("position_ids"), self._limit
        )
        self._plan(step)
        seen = cache if wanted or given.get("past_key_values") is not None else None
        return (), given | {"past_key_values": seen, "va_step": step}

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
        self._attention.plan(step.step)  # all layers share one binding


def adapt(
    model: Any,
    device: OpenDevice | str = "cpu",
    *,
    max_kv_blocks: int | None = None,
    settings: Settings | None = None,
) -> Adapted:
    """Moves a Llama-like model to a device and replaces its layers by portable operators.

    `device` is an adapter's name or an opened device. Weights are shared with the original
    layers, not copied (unless an implementation prepares its own form). Everything is checked
    and bound before anything of the model is replaced. Afterwards one forward runs at a time:
    threads that share the model must take turns, for all forwards share one plan.

    Raises:
        UnsupportedModel: the model is not Llama-like, or is adapted already.
        UnsupportedCase: an operator has no implementation for the model's shapes or dtype.
        AdapterError, NoSuchDevice, OutOfMemory: as opening and allocating do.
    """
    settings = settings or Settings.from_environ()
    base = getattr(model, getattr(model, "base_model_prefix", ""), model)
    if max_kv_blocks is not None and max_kv_blocks < 1:
        raise InputError(
            f"max_kv_blocks is {max_kv_blocks}", hint="give at least 1, or None for no bound"
        )
    if adapted_of(model) is not None:
        raise UnsupportedModel("the model is adapted already", hint="call unadapt(model) first")
    llama.check_supported(base)
    opened = open_device(device, settings=settings) if isinstance(device, str) else device
    shape, dtype = llama.shape_of(base.config), model.dtype
    size = BlockSize(
        layers=len(base.layers),
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        element_bytes=dtype.itemsize,
        block_size=opened.capability.kv.preferred_block or DEFAULT_BLOCK,
    )
    kv = PagedKVCache(
        opened.runtime,
        opened.record.index,
        size,
        dtype,
        blocks=min(FIRST_BLOCKS, max_kv_blocks or FIRST_BLOCKS),
        max_blocks=max_kv_blocks,
    )
    origin = model.device
    try:
        model.to(opened.device)
        replaced = _replacements(model, base, kv, settings)
    except BaseException:
        kv.close()
        model.to(origin)
        raise
    adapted = Adapted(
        kv,
        opened,
        providers_of(torch.nn.ModuleList([module for _, _, module in replaced])),
        replaced[0][2].inner.attention,
        base.config.max_position_embeddings,
        _parameters=list(inspect.signature(base.forward).parameters),
        _attention_was=model.config._attn_implementation,
    )
    _swap_in(model, base, replaced, adapted)
    return adapted


def unadapt(model: Any) -> None:
    """Gives the model its own layers back, and the KV cache's memory to the device.

    Raises:
        InputError: the model is not adapted.
    """
    adapted = adapted_of(model)
    if adapted is None:
        raise InputError("the model is not adapted", hint="adapt(model, device) comes first")
    for hook in adapted._hooks:
        hook.remove()
    for parent, name, original in adapted._restore:
        parent._modules[name] = original.train(parent.training)
    model.set_attn_implementation(adapted._attention_was)
    adapted.kv.close()
    del model.__dict__[ATTRIBUTE]


def adapted_of(model: Any) -> Adapted | None:
    """What `adapt` made of the model, or None."""
    found: Adapted | None = model.__dict__.get(ATTRIBUTE)
    return found


def _replacements(
    model: Any, base: Any, kv: PagedKVCache, settings: Settings
) -> list[Replacement]:
    """Our modules and their places, the layers first; nothing is replaced yet."""
    shape = llama.shape_of(base.config)
    table = llama.rope_table(base, model.dtype, kv.device)
    found: list[Replacement] = []
    for i, source in enumerate(base.layers):
        inner = llama.build_layer(source, shape, kv, settings)
        found.append((base.layers, str(i), llama.Layer(inner, i, table)))
    found.append((base, "norm", RMSNorm(base.norm.weight, shape.eps, settings)))
    if type(getattr(model, "lm_head", None)) is torch.nn.Linear:
        head = Linear(model.lm_head.weight, model.lm_head.bias, settings)
        found.append((model, "lm_head", head))
    return found


def _swap_in(model: Any, base: Any, replaced: list[Replacement], adapted: Adapted) -> None:
    AttentionInterface.register(ATTENTION, _never_called)
    model.set_attn_implementation(ATTENTION)
    for parent, name, module in replaced:
        original = parent._modules[name]
        assert original is not None
        adapted._restore.append((parent, name, original))
        parent._modules[name] = module
    adapted._hooks += [
        base.register_forward_pre_hook(adapted.before_forward, with_kwargs=True),
        base.register_state_dict_pre_hook(_refuse_state_dict),
    ]
    model.__dict__[ATTRIBUTE] = adapted


def _never_called(*args: Any, **kwargs: Any) -> Any:
    raise UnsupportedModel(
        "an attention layer of transformers ran in an adapted model",
        hint="unadapt(model), then adapt it again",
    )


def _refuse_state_dict(*args: Any) -> None:
    raise UnsupportedModel(
        "the weights of an adapted model have names and shapes of our own, and are not saved",
        hint="unadapt(model), save it, then adapt it again",
    )


def _refuse_packing(given: Mapping[str, Any]) -> None:
    """transformers takes positions with jumps for several sequences in one row."""
    positions = given.get("position_ids")
    free = given.get("attention_mask") is None and given.get("past_key_values") is None
    if free and positions is not None and bool((positions.diff(dim=-1) != 1).any()):
        raise UnsupportedModel(
            "several sequences packed in one row are not served",
            hint="give each sequence a row of its own, and an attention mask",
        )


def _refuse_outputs(model: Any, given: Mapping[str, Any]) -> None:
    for name in ("output_attentions", "output_hidden_states"):
        asked = given.get(name)
        if getattr(model.config, name, False) if asked is None else asked:
            raise UnsupportedModel(
                f"{name} is not served by an adapted model",
                hint=f"leave {name} unset, or unadapt(model)",
            )
    if model.training:
        raise UnsupportedModel(
            "an adapted model serves inference only", hint="call model.eval() first"
        )
