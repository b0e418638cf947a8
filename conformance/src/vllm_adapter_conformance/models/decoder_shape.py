"""Sizes of a small decoder layer, and what it asks of each operator. Without torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.ops.cases import Facts, refusal, values

KV_HEADS: Final = 2


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """One layer; the feed-forward part is as wide as the hidden states."""

    dtype: str
    head_size: int
    block_size: int
    gqa_ratio: int

    @property
    def heads(self) -> int:
        """Query heads."""
        return KV_HEADS * self.gqa_ratio

    @property
    def hidden(self) -> int:
        """Width of the hidden states."""
        return self.heads * self.head_size

    @property
    def qkv(self) -> int:
        """Width of queries, keys and values of one token, merged."""
        return (self.heads + 2 * KV_HEADS) * self.head_size

    def linear(self, width: int, out: int) -> Facts:
        """Facts of a projection."""
        sizes = {"in_features": width, "out_features": out, "bias": False}
        return {"dtype": self.dtype, **sizes}

    def plain(self) -> dict[str, Any]:
        """Sizes and needs as plain data, for what makes such a decoder on the device."""
        needs = {op: dict(facts) for op, facts in self.needs() if op != "linear"}
        sizes = {"head_size": self.head_size, "block_size": self.block_size}
        heads = {"heads": self.heads, "kv_heads": KV_HEADS}
        return {"dtype": self.dtype, **sizes, **heads, "needs": needs}

    def needs(self) -> Iterator[tuple[str, Facts]]:
        """Every operator's case in such a layer; linear has several."""
        for op in ("rms_norm", "fused_add_rms_norm", "silu_and_mul"):
            yield op, {"dtype": self.dtype, "hidden": self.hidden}
        own: Facts = {
            "head_size": self.head_size,
            "block_size": self.block_size,
            "gqa_ratio": self.gqa_ratio,
        }
        for op in ("rotary_embedding", "reshape_and_cache", "paged_attention"):
            facts: Facts = {"dtype": self.dtype}
            for name in OPERATORS[op].bind_facts:
                off = OPERATORS[op].facts[name].off
                facts[name] = own[name] if off is None else off
            yield op, facts
        for width, out in (
            (self.hidden, self.qkv),
            (self.hidden, self.hidden),
            (self.hidden, 2 * self.hidden),
        ):
            yield "linear", self.linear(width, out)


def decoder_shape(capability: Capability, dtype: str) -> DecoderShape | Reject:
    """The first shape that the descriptor declares throughout; else why not the first of all."""
    tried = [
        values(capability, OPERATORS["paged_attention"], name)
        for name in ("head_size", "block_size", "gqa_ratio")
    ]
    first: Reject | None = None
    for sizes in itertools.product(*tried):
        shape = DecoderShape(dtype, *map(int, sizes))
        refusals = (refusal(capability, op, facts) for op, facts in shape.needs())
        missing = next((r for r in refusals if r), None)
        if missing is None:
            return shape
        first = first or missing
    assert first is not None
    return first
