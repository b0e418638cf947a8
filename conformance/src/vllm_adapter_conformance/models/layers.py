"""The two layers of which one is the core of L2: a decoder's, and an encoder's. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.models.decoder_shape import decoder_shape
from vllm_adapter_conformance.models.shape import model_shape
from vllm_adapter_conformance.ops.cases import Facts

Needs = Iterator[tuple[str, Facts]]


def _decoder(capability: Capability, dtype: str) -> list[tuple[str, Facts]] | Reject:
    shape = decoder_shape(capability, dtype)
    return shape if isinstance(shape, Reject) else list(shape.needs())


def _encoder(capability: Capability, dtype: str) -> list[tuple[str, Facts]] | Reject:
    shape = model_shape(capability, "bert", dtype)
    return shape if isinstance(shape, Reject) else list(shape.needs())


LAYERS: Final[Mapping[str, Callable[[Capability, str], list[tuple[str, Facts]] | Reject]]] = {
    "decoder": _decoder,
    "encoder": _encoder,
}


def layer_gap(capability: Capability, kind: str, dtype: str) -> str | None:
    """Why a layer of that kind is not declared in a dtype by entries that are `full`, or None.

    Its operators must meet in one head size, and where there is a cache in one block size.
    """
    needs = LAYERS[kind](capability, dtype)
    if isinstance(needs, Reject):
        return str(needs)
    for op in dict.fromkeys(op for op, _ in needs):
        parts = (op, OPERATORS[op].composed_of)
        entries = [e for part in parts if part for e in capability.operators.get(part, ())]
        if not any(e.support == "full" and dtype in e.dtypes for e in entries):
            return f"{op} is not declared `full` in {dtype} (/operators/{op})"
    return None
