"""`adapt(model, device)`: a transformers model through an adapter's operators, and back.

The tokenizer, the chat template, sampling and the generation loop stay transformers' own; no
global of transformers is patched. Inference only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import transformers
from transformers import AttentionInterface

from vllm_adapter.contract.quantization import FORMS, QUANTIZE, Quantize
from vllm_adapter.engine.device import OpenDevice, open_device
from vllm_adapter.engine.integrations.layers import providers_of
from vllm_adapter.engine.integrations.quantized import AS_IS, Quantizer
from vllm_adapter.engine.integrations.transformers import (
    bert,
    decoder,
    decoding,
    llama,
    qwen2,
    qwen3,
)
from vllm_adapter.engine.integrations.transformers.accuracy import (
    cost_sentence,
    is_too_much,
    perplexity,
)
from vllm_adapter.engine.integrations.transformers.bert import EncoderSteps
from vllm_adapter.engine.integrations.transformers.binding_snapshot import BindingSnapshot
from vllm_adapter.engine.integrations.transformers.cache import PackedStep, PagedCache
from vllm_adapter.engine.integrations.transformers.decoder import Family
from vllm_adapter.engine.integrations.transformers.decoding import DecoderSteps
from vllm_adapter.engine.integrations.transformers.gradients import Asked
from vllm_adapter.engine.integrations.transformers.guard import (
    ReplacedModules,
    ReplacementModule,
    StepCheck,
    guard_model,
    places_of,
    seal,
)
from vllm_adapter.engine.integrations.transformers.place import (
    Replacement,
    never_called,
    refuse_state_dict,
)
from vllm_adapter.engine.integrations.transformers.replacement_check import (
    check_decoder,
    check_encoder,
)
from vllm_adapter.engine.integrations.transformers.source import AlteredModel
from vllm_adapter.engine.integrations.transformers.stock import inspect_model
from vllm_adapter.engine.kv_cache import PagedKVCache
from vllm_adapter.errors import InputError, UnsupportedModel
from vllm_adapter.settings import Settings

ATTENTION: Final = "vllm_adapter"
"""The name in transformers' AttentionInterface. It has no mask function: no 4-D mask is built."""
ATTRIBUTE: Final = "_vllm_adapter"
DECODERS: Final[Mapping[str, Family]] = {
    "llama": llama.options,
    "qwen2": qwen2.options,
    "qwen3": qwen3.options,
}
"""Served decoders by transformers' `model_type`."""
ENCODER: Final = "bert"
CLASSES: Final = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "bert": "Bert"}


@dataclass(eq=False)
class Adapted:
    """A model in our hands: what `unadapt` needs, its step moment, and who runs what."""

    opened: OpenDevice
    providers: Mapping[str, tuple[str, ...]]
    """Who runs each operator of the model."""
    steps: DecoderSteps | EncoderSteps
    _attention_was: str
    quantization: Quantizer | None = None
    """What each weight became, where fewer bits were asked for."""
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _hooks: list[Any] = field(default_factory=list)
    _restore: list[Replacement] = field(default_factory=list)

    @property
    def kv(self) -> PagedKVCache:
        """The KV cache of all batches.

        Raises:
            UnsupportedModel: the model is an encoder.
        """
        return self._decoding.kv

    def prepare(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: PagedCache | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> tuple[PagedCache, PackedStep]:
        """The step moment by hand, for a compiled model, whose hook must not allocate.

        input_ids: int64 [batch, columns]; attention_mask: [batch, all columns], 1 where real;
        position_ids: int64 [batch or 1, columns].

        Pass the results to the base model as `past_key_values` (whatever the release of
        transformers calls it) and `va_step`.

        Raises:
            UnsupportedModel: the model is an encoder, or as a forward does.
        """
        return self._decoding.prepare(input_ids, attention_mask, past_key_values, position_ids)

    @property
    def _decoding(self) -> DecoderSteps:
        if isinstance(self.steps, EncoderSteps):
            raise UnsupportedModel(
                "an encoder has no KV cache and no decoding step", hint="call the model itself"
            )
        return self.steps


def adapt(
    model: Any,
    device: OpenDevice | str = "cpu",
    *,
    max_kv_blocks: int | None = None,
    quantize: Quantize = "none",
    accuracy_text: torch.Tensor | None = None,
    settings: Settings | None = None,
) -> Adapted:
    """Moves a model of a served type to a device and replaces its layers by portable operators.

    `device` is an adapter's name or an opened device. Weights are shared with the original
    layers, not copied (unless an implementation prepares its own form). `max_kv_blocks` bounds a
    decoder's KV cache; an encoder has none. Everything is checked
    and bound before anything of the model is replaced. Afterwards one forward runs at a time:
    threads that share the model must take turns, for all forwards share one plan.

    `quantize` asks for the products of a decoder's layers in fewer bits: "fp8" (its KV cache,
    too), "int8", "int4", or what the device serves best ("auto"). What the device or its adapters
    do not serve falls to the next form; `quantization` of the result says what each weight became.
    The original weights stay on the host. With `accuracy_text`, tokens int64[n] of a text, the
    perplexity is taken before and after: a form that costs more than it may is refused with the
    figures, and under "auto" the next one is tried.

    Raises:
        UnsupportedModel: the model is not of a served type, is adapted already, does not take
            the cache that it is given, in a release of transformers that was not tried, or loses
            more of its accuracy than it may.
        UnsupportedCase: an operator has no implementation for the model's shapes or dtype.
        InputError: a bound or a form that there is not, or not for an encoder.
        AdapterError, NoSuchDevice, OutOfMemory: as opening and allocating do.
    """
    settings = settings or Settings.from_environ()
    if max_kv_blocks is not None and max_kv_blocks < 1:
        raise InputError(
            f"max_kv_blocks is {max_kv_blocks}", hint="give at least 1, or None for no bound"
        )
    if quantize not in QUANTIZE:
        raise InputError(
            f"there is no form {quantize!r} of weights", hint=f"use one of: {', '.join(QUANTIZE)}"
        )
    if accuracy_text is not None and accuracy_text.numel() < 2:
        raise InputError(
            f"accuracy_text has {accuracy_text.numel()} tokens", hint="give a text of some length"
        )
    opened = None if isinstance(device, str) else device

    def once(form: str) -> Adapted:
        nonlocal opened
        _refuse_adapted(model)
        watch = _check_served(model, _base_of(model))
        if opened is None:
            opened = open_device(str(device), settings=settings)
        return _adapted_once(model, opened, watch, max_kv_blocks, form, settings)

    if quantize == "none" or accuracy_text is None:
        return once(quantize)
    return _adapted_within(model, once, quantize, accuracy_text)


def _adapted_within(
    model: Any, once: Callable[[str], Adapted], asked: str, text: torch.Tensor
) -> Adapted:
    """The model in the first form of those asked for that costs no more than it may.

    Raises:
        UnsupportedModel: the one form that was asked for costs more.
    """
    once("none")
    before = perplexity(model, text)
    unadapt(model)
    forms = FORMS["auto"] if asked == "auto" else (asked,)
    refused: list[str] = []
    for form in forms:
        adapted = once(form)
        assert adapted.quantization is not None
        taken = [f for f in adapted.quantization.forms if f != AS_IS]
        after = perplexity(model, text) if taken else before
        figures = [cost_sentence(f, before, after) for f in taken]
        if not any(is_too_much(f, before, after) for f in taken):
            adapted.quantization.accuracy = (*refused, *figures)
            return adapted
        unadapt(model)
        refused += figures
    if asked == "auto":
        adapted = once("none")
        adapted.quantization = Quantizer(adapted.opened.capability, "none")
        adapted.quantization.accuracy = tuple(refused)
        return adapted
    raise UnsupportedModel(
        f"the model loses too much: {'; '.join(refused)}",
        hint='take a form of more bits, or quantize="none"',
    )


def _adapted_once(
    model: Any,
    opened: OpenDevice,
    watch: BindingSnapshot,
    max_kv_blocks: int | None,
    form: str,
    settings: Settings,
) -> Adapted:
    base = _base_of(model)
    quantizer = None if form == "none" else Quantizer(opened.capability, form)
    origin = model.device
    try:
        model.to(opened.device)
        own = opened.own(settings)
        replaced, steps = _build(model, base, opened, max_kv_blocks, own, quantizer)
    except BaseException:
        model.to(origin)
        raise
    adapted = Adapted(
        opened,
        providers_of(torch.nn.ModuleList([module for _, _, module in replaced])),
        steps,
        model.config._attn_implementation,
        quantizer,
    )
    hook = _swap_in(model, base, replaced, adapted)
    try:
        if isinstance(steps, EncoderSteps):
            check_encoder(base, replaced, bert.BertLayer)
        else:
            check_decoder(model, base, replaced, decoder.PaddedDecoderLayer)
    except BaseException:
        unadapt(model)
        model.to(origin)
        raise
    _guard(model, base, replaced, adapted, StepCheck(watch, ATTENTION, base.config, [], hook))
    if quantizer is not None:
        adapted._undo.append(_parked(adapted))
    return adapted


def _parked(adapted: Adapted) -> Callable[[], None]:
    """Moves the weights that ours stand for to the host; gives the way back."""
    device, found = adapted.opened.device, list[torch.nn.Parameter]()
    if device.type != "cpu":
        layers = [
            m for parent, _, m in adapted._restore if isinstance(parent, torch.nn.ModuleList)
        ]
        found = [p for layer in layers for p in layer.parameters()]

    def move(to: torch.device | str) -> None:
        for parameter in found:
            parameter.data = parameter.data.to(to)

    move("cpu")
    return lambda: move(device)


def _base_of(model: Any) -> Any:
    """The base model of a whole one, or the model itself."""
    return getattr(model, getattr(model, "base_model_prefix", ""), model)


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
    for undo in adapted._undo:
        undo()
    for parent, name, original in adapted._restore:
        parent._modules[name] = original.train(parent.training)
    model.set_attn_implementation(adapted._attention_was)
    adapted.steps.close()
    del model.__dict__[ATTRIBUTE]


def adapted_of(model: Any) -> Adapted | None:
    """What `adapt` made of the model, or None."""
    found: Adapted | None = getattr(model, "__dict__", {}).get(ATTRIBUTE)
    return found


def _refuse_adapted(model: Any) -> None:
    """Raises UnsupportedModel where the model, or a part of it, is ours already."""
    if (part := _adapted_part(model)) is not None:
        raise UnsupportedModel(
            f"{part} is adapted already", hint="call unadapt() first, with what was adapted"
        )


def _adapted_part(model: Any) -> str | None:
    """What of the model is ours already, in words: the model, or a part of it; else None."""
    if adapted_of(model) is not None:
        return "the model"
    # A whole model over an adapted base, the base of an adapted whole, or a shared layer.
    parts = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    found = next((path for path, part in parts if isinstance(part, ReplacementModule)), None)
    return None if found is None else f"a part of the model ({found})"


def _check_served(model: Any, base: Any) -> BindingSnapshot:
    """Whether a base model can be rebuilt from our layers.

    Raises:
        UnsupportedModel: the first thing that we do not serve.
    """
    model_type = getattr(getattr(base, "config", None), "model_type", None)
    stock = getattr(transformers, f"{CLASSES.get(str(model_type))}Model", None)
    if stock is not None and type(base) is not stock:
        fault: str | None = f"a {type(base).__module__}.{type(base).__name__}"
    elif model_type == ENCODER:
        fault = bert.fault(base)
    elif model_type in DECODERS:
        fault = decoder.fault(base)
    else:
        fault = f"a {model_type or type(base).__name__} model"
    if fault:
        raise UnsupportedModel(
            f"{fault} is not served",
            hint=f"adapt() serves plain models of type {', '.join([*DECODERS, ENCODER])}",
        )
    taken = bert.TAKEN if model_type == ENCODER else decoder.TAKEN
    try:
        return inspect_model(base, taken, "" if base is model else model.base_model_prefix)
    except AlteredModel as altered:
        raise UnsupportedModel(
            f"{altered}, and the adapted model would not be the same",
            hint="adapt() serves models as transformers makes them; take the change back, or run "
            "the model without adapt()",
        ) from altered


def _build(
    model: Any,
    base: Any,
    opened: OpenDevice,
    max_kv_blocks: int | None,
    settings: Settings,
    quantizer: Quantizer | None,
) -> tuple[list[Replacement], DecoderSteps | EncoderSteps]:
    if base.config.model_type == ENCODER:
        if quantizer is not None:
            raise InputError(
                "an encoder is served with its weights as they are",
                hint='leave quantize out, or "none"',
            )
        if max_kv_blocks is not None:
            raise InputError(
                "max_kv_blocks bounds a KV cache, and an encoder has none",
                hint="leave max_kv_blocks unset",
            )
        return bert.build(base, settings)
    family = DECODERS[base.config.model_type]
    return decoding.build(model, base, opened, family, max_kv_blocks, settings, quantizer)


def _swap_in(model: Any, base: Any, replaced: list[Replacement], adapted: Adapted) -> int:
    """Puts our modules in their places, unguarded; gives the number of the pre-hook."""
    AttentionInterface.register(ATTENTION, never_called)
    model.set_attn_implementation(ATTENTION)
    for parent, name, module in replaced:
        original = parent._modules[name]
        assert original is not None
        adapted._restore.append((parent, name, original))
        parent._modules[name] = module
        seal(module.train(parent.training))
    step = base.register_forward_pre_hook(adapted.steps.before_forward, with_kwargs=True)
    adapted._hooks += [step, base.register_state_dict_pre_hook(refuse_state_dict)]
    adapted.steps.check = _unguarded
    model.__dict__[ATTRIBUTE] = adapted
    number: int = step.id
    return number


def _unguarded(base: Any) -> None:
    """Stands for the check while witnesses are in the places of our modules."""


def _guard(
    model: Any, base: Any, replaced: list[Replacement], adapted: Adapted, check: StepCheck
) -> None:
    places = [place for place in replaced if place[0] is not model or model is base]
    check.places += places_of(base, places)
    adapted.steps.check = check
    retired = ReplacedModules([original for _, _, original in adapted._restore])
    asked = [Asked.of(part, adapted._restore) for part in dict.fromkeys((model, base))]
    adapted._undo += [retired.restore, guard_model(model, base), *(one.install() for one in asked)]
