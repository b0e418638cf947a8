"""Which tiny models a descriptor lets vLLM serve, as cases. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Final

from vllm_adapter.contract.decision import Reject
from vllm_adapter_conformance.base.rule import Case, Cases, NotDeclaredCase
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import ModelShape, model_shape
from vllm_adapter_conformance.ops.cases import declared, refusal

KINDS: Final = ("llama", "qwen3")
DTYPE: Final = "float32"
LOW: Final = "bfloat16"
BLOCKS: Final = (32, 16, 64)
"""Tokens of a block, as vLLM's own backends take them."""


def served(target: Target, kind: str, dtype: str = DTYPE) -> ModelShape | Reject:
    """The shape that is served in a dtype; its other sizes are those of float32."""
    capability = declared(target)
    found = model_shape(capability, kind, DTYPE)
    if isinstance(found, Reject):
        return found
    first: Reject | None = None
    for block in BLOCKS:
        shape = replace(found, dtype=dtype, block_size=block)
        refusals = (refusal(capability, op, facts) for op, facts in shape.needs())
        missing = next((r for r in refusals if r), None)
        if missing is None:
            return shape
        first = first or missing
    assert first is not None
    return first


def cases_of(*kinds: str, dtype: str = DTYPE) -> Cases:
    """One case a model, where the descriptor declares all that it needs."""

    def cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
        for kind in kinds if target.capability else ():
            yield one_case(target, kind, dtype, kind)

    return cases


def one_case(target: Target, kind: str, dtype: str, id: str) -> Case | NotDeclaredCase:
    """The case of a model under an id of its own."""
    shape = served(target, kind, dtype)
    if isinstance(shape, Reject):
        return NotDeclaredCase(id, shape.pointer, str(shape))
    return Case(id, asdict(shape))
