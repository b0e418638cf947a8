"""Tiny models of level L3: their sizes, and what they ask of each operator. Without torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.decoder_shape import KV_HEADS, DecoderShape
from vllm_adapter_conformance.ops.cases import Facts, declared, refusal, values

DECODERS: Final = ("llama", "qwen3")
VOCABULARY: Final = 128


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model of two layers; the feed-forward part is as wide as the hidden states."""

    kind: str
    dtype: str
    head_size: int
    block_size: int
    gqa_ratio: int
    window: int = 0
    """Tokens that the second layer sees; 0: all."""

    @property
    def heads(self) -> int:
        """Query heads."""
        return KV_HEADS * self.gqa_ratio

    @property
    def hidden(self) -> int:
        """Width of the hidden states."""
        return self.heads * self.head_size

    def needs(self) -> Iterator[tuple[str, Facts]]:
        """Every operator's case in the model, some more than once."""
        return self._encoder() if self.kind == "bert" else self._decoder()

    def _decoder(self) -> Iterator[tuple[str, Facts]]:
        layer = DecoderShape(self.dtype, self.head_size, self.block_size, self.gqa_ratio)
        yield from layer.needs()
        yield "linear", layer.linear(self.hidden, VOCABULARY)
        if self.kind == "qwen3":
            yield "rms_norm", {"dtype": self.dtype, "hidden": self.head_size}
        if self.window:
            attend = dict(layer.needs())["paged_attention"]
            yield "paged_attention", attend | {"window": self.window}

    def _encoder(self) -> Iterator[tuple[str, Facts]]:
        wide: Facts = {"dtype": self.dtype, "hidden": self.hidden}
        yield (
            "attention",
            {
                "dtype": self.dtype,
                "head_size": self.head_size,
                "gqa_ratio": 1,
                "causal": False,
                "window": 0,
                "soft_cap": 0.0,
            },
        )
        yield "layer_norm", wide | {"bias": True}
        yield "gelu", wide | {"tanh": False}
        yield "embedding", wide
        for out in (self.hidden, 3 * self.hidden):
            yield (
                "linear",
                {
                    "dtype": self.dtype,
                    "in_features": self.hidden,
                    "out_features": out,
                    "bias": True,
                },
            )


def model_shape(
    capability: Capability, kind: str, dtype: str, *, windowed: bool = False
) -> ModelShape | Reject:
    """The first shape that the descriptor declares throughout; else why not the first of all.

    Several query heads a KV head are tried before one.
    """
    attend = OPERATORS["attention" if kind == "bert" else "paged_attention"]
    sizes = values(capability, attend, "head_size")
    ratios = sorted(values(capability, attend, "gqa_ratio"), key=lambda ratio: ratio == 1)
    windows = [w for w in values(capability, attend, "window") if w] if windowed else [0]
    first: Reject | None = None
    for size, ratio, window in itertools.product(
        sizes, [1] if kind == "bert" else ratios, windows
    ):
        block = capability.kv.block_size
        shape = ModelShape(kind, dtype, int(size), block, int(ratio), int(window))
        refusals = (refusal(capability, op, facts) for op, facts in shape.needs())
        missing = next((r for r in refusals if r), None)
        if missing is None:
            return shape
        first = first or missing
    assert first is not None
    return first


def model_case(
    target: Target, kind: str, dtype: str, *, windowed: bool = False
) -> Case | NotDeclaredCase:
    """The case of one model and dtype, or why the descriptor does not declare it."""
    id = f"{dtype}-window" if windowed else dtype
    shape = model_shape(declared(target), kind, dtype, windowed=windowed)
    if isinstance(shape, Reject):
        return NotDeclaredCase(id, shape.pointer, str(shape))
    return Case(id, asdict(shape))


def model_cases(target: Target, kind: str) -> Iterator[Case | NotDeclaredCase]:
    """The cases of one model, in every dtype."""
    for dtype in DTYPES if target.capability else ():
        yield model_case(target, kind, dtype)
        if kind == "qwen3":
            yield model_case(target, kind, dtype, windowed=True)


def shape_of(case: Case) -> ModelShape:
    """The shape that a case was made with."""
    params: dict[str, Any] = dict(case.params)
    return ModelShape(**params)
