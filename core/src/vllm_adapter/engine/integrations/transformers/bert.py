"""BERT: transformers' encoder rebuilt from our layers, and the step moment of an encoder."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.encoder import (
    Embedding,
    EncoderLayer,
    EncoderShape,
    LayerNorm,
    Norm,
    Weights,
)
from vllm_adapter.engine.integrations.layers import merge
from vllm_adapter.engine.integrations.transformers.guard import (
    PlacedLinear,
    ReplacementModule,
    refuse,
    refuse_mode_and_dtype,
)
from vllm_adapter.engine.integrations.transformers.packing import Packing, places, real_tokens
from vllm_adapter.engine.integrations.transformers.place import (
    Forward,
    Replacement,
    refuse_outputs,
)
from vllm_adapter.engine.integrations.transformers.replacement_check import CACHE_NAMES
from vllm_adapter.engine.integrations.transformers.stock import ReplacedParts, is_plain_linear
from vllm_adapter.errors import UnsupportedModel
from vllm_adapter.settings import Settings

TAKEN: Final = ReplacedParts(
    kept=frozenset({"pooler"}), frames=frozenset({"encoder", "encoder.layer"})
)
GELU: Final = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}
"""Served activations, and whether they are approximated by tanh."""


@dataclass(frozen=True)
class EncoderStep(Packing):
    """One forward of an encoder: the packed batch and where each sequence begins."""

    query_start_loc: torch.Tensor
    """int32[B + 1]."""


class BertLayer(ReplacementModule, torch.nn.Module):
    """Our encoder layer in the place of transformers': padded in, padded out."""

    def __init__(self, inner: EncoderLayer) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        va_step: EncoderStep | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[B, Q, hidden] -> the same. `va_step` comes from the hook on the base model."""
        if va_step is None:
            refuse("calling a layer outside of the model's forward")
        refuse_mode_and_dtype(self, hidden_states, self.inner.output_norm.weight)
        packed = self.inner(va_step.pack(hidden_states), va_step.query_start_loc)
        return va_step.unpack(packed, hidden_states)


class Embeddings(ReplacementModule, torch.nn.Module):
    """Words, kinds and places of tokens, added up and normed."""

    places: torch.Tensor
    kinds: torch.Tensor

    def __init__(self, source: Any, settings: Settings) -> None:
        """`source` is transformers' `BertEmbeddings`, whose weights are shared."""
        super().__init__()
        parts = source.word_embeddings, source.token_type_embeddings, source.position_embeddings
        self.tables = Embedding([part.weight for part in parts], settings)
        self.norm = LayerNorm(*_norm(source.LayerNorm), settings)
        # What stands where the caller gives none; not always 0, 1, 2... and 0.
        self.register_buffer("places", source.position_ids, persistent=False)
        self.register_buffer("kinds", source.token_type_ids, persistent=False)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[B, Q] numbers, or [B, Q, hidden] rows of words -> [B, Q, hidden]."""
        given = input_ids if input_ids is not None else inputs_embeds
        assert given is not None
        batch, columns = given.shape[:2]
        if position_ids is None:
            position_ids = self.places[:, :columns]
        if token_type_ids is None:
            kinds = self.kinds.expand(position_ids.shape[0], -1).gather(1, position_ids)
            token_type_ids = kinds.expand(batch, columns)
        rows: list[torch.Tensor] = self.tables(input_ids, token_type_ids, position_ids)
        words = [] if inputs_embeds is None else [inputs_embeds.detach()]
        first, *others = [*words, *rows]
        result: torch.Tensor = self.norm(sum(others, start=first))
        return result


@dataclass(eq=False)
class EncoderSteps:
    """Makes a step of each forward, before any layer runs."""

    _limit: int
    _parameters: Sequence[str]
    check: Callable[[Any], None] = field(init=False)

    def before_forward(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Forward | None:
        """The pre-hook on the base model: once a forward, it packs the batch."""
        self.check(model)
        given = dict(zip(self._parameters, args, strict=False)) | kwargs
        refuse_outputs(model, given)
        for name in ("encoder_hidden_states", "encoder_attention_mask", *CACHE_NAMES):
            if given.get(name) is not None:
                raise UnsupportedModel(
                    f"{name} is not served by an adapted encoder",
                    hint=f"leave {name} unset, or unadapt(model)",
                )
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if tokens is None:
            return None  # transformers says what is wrong
        self._check_positions(tokens.shape[1], given.get("position_ids"))
        step = make_step(tokens.shape[0], tokens.shape[1], given, tokens.device)
        return (), given | {"va_step": step}

    def close(self) -> None:
        """Nothing is held."""

    def _check_positions(self, columns: int, position_ids: torch.Tensor | None) -> None:
        highest = columns
        if position_ids is not None and position_ids.numel():
            highest = int(position_ids.max()) + 1
        if highest > self._limit:
            raise UnsupportedModel(
                f"the batch needs {highest} positions, and the model has {self._limit}",
                hint="shorten the texts: the tokenizer's truncation=True does",
            )


def make_step(
    batch: int, columns: int, given: Mapping[str, Any], device: torch.device
) -> EncoderStep:
    """The step of a padded batch, from its 2-D mask; without one every token is real.

    Raises:
        UnsupportedModel: another mask.
    """
    mask, rows, counts = given.get("attention_mask"), None, [columns] * batch
    if mask is not None:
        real = real_tokens(mask, batch, columns)
        rows, counts = places(real, device), real.sum(1).tolist()
    starts = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    return EncoderStep(rows, starts.to(device))


def fault(base: Any) -> str | None:
    """The first thing of a BERT that our layers do not serve, or None."""
    config = base.config
    if config.is_decoder or config.add_cross_attention:
        return "a bert model as a decoder, or with cross attention,"
    if config.hidden_act not in GELU:
        return f"the activation {config.hidden_act}"
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        return f"position_embedding_type {kind}"
    return None


def build(base: Any, settings: Settings) -> tuple[list[Replacement], EncoderSteps]:
    """Our modules for an encoder that is on the device, and its step moment.

    Raises:
        UnsupportedCase: an operator has no implementation for the model's shapes or dtype.
    """
    config = base.config
    found: list[Replacement] = [
        (base.encoder.layer, str(i), BertLayer(_build_layer(source, settings)))
        for i, source in enumerate(base.encoder.layer)
    ]
    found.append((base, "embeddings", Embeddings(base.embeddings, settings)))
    dense = getattr(base.pooler, "dense", None)
    if dense is not None and is_plain_linear(dense, base.pooler, base.embeddings):
        found.append((base.pooler, "dense", PlacedLinear(*_pair(dense), settings)))
    parameters = list(inspect.signature(base.forward).parameters)
    return found, EncoderSteps(config.max_position_embeddings, parameters)


def _build_layer(source: Any, settings: Settings) -> EncoderLayer:
    """Our layer over the weights of transformers' `BertLayer`, sharing their memory."""
    attention = source.attention
    shape = EncoderShape(
        intermediate=source.intermediate.dense.out_features,
        heads=attention.self.num_attention_heads,
        head_size=attention.self.attention_head_size,
        scale=attention.self.scaling,
        tanh=GELU[attention.self.config.hidden_act],
    )
    return EncoderLayer(
        shape,
        qkv=merge([attention.self.query, attention.self.key, attention.self.value]),
        out=_pair(attention.output.dense),
        attention_norm=_norm(attention.output.LayerNorm),
        up=_pair(source.intermediate.dense),
        down=_pair(source.output.dense),
        output_norm=_norm(source.output.LayerNorm),
        settings=settings,
    )


def _norm(module: Any) -> Norm:
    return _pair(module), module.eps


def _pair(module: Any) -> Weights:
    return module.weight, module.bias
