"""Which tiny models a descriptor lets vLLM serve, as cases. Without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.rule import Case, Cases, NotDeclaredCase
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import ModelShape, model_shape
from vllm_adapter_conformance.ops.cases import declared, refusal, values

KINDS: Final = ("llama", "qwen3")
DTYPES: Final = ("float32", "bfloat16", "float16")
"""The first of these that the descriptor declares is served; plain vLLM answers in float32."""
LOW: Final = "bfloat16"
BLOCKS: Final = (32, 16, 64)
"""Tokens of a block, as vLLM's own backends take them; after those comes what the chip wants."""


def served(target: Target, kind: str, dtype: str | None = None) -> ModelShape | Reject:
    """The shape that is served, in a dtype or in the first that is declared.

    Its other sizes are those of the first dtype that is declared.
    """
    capability = declared(target)
    first: Reject | None = None
    for lead in DTYPES:
        found = model_shape(capability, kind, lead)
        if isinstance(found, Reject):
            first = first or found
            continue
        for block in blocks(capability):
            shape = replace(found, dtype=dtype or lead, block_size=block)
            refusals = (refusal(capability, op, facts) for op, facts in shape.needs())
            missing = next((r for r in refusals if r), None)
            if missing is None:
                return shape
            first = first or missing
    assert first is not None
    return first


def blocks(capability: Capability) -> list[int]:
    """Block sizes to try: vLLM's own that suit the chip, its preferred one, those it declares."""
    multiple = capability.kv.block_multiple or 1
    wanted = values(capability, OPERATORS["paged_attention"], "block_size")
    found = [*BLOCKS, capability.kv.block_size, *map(int, wanted)]
    return [block for block in dict.fromkeys(found) if block % multiple == 0]


def cases_of(*kinds: str, dtype: str | None = None) -> Cases:
    """One case a model, where the descriptor declares all that it needs."""

    def cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
        for kind in kinds if target.capability else ():
            yield one_case(target, kind, kind, dtype)

    return cases


def one_case(
    target: Target, kind: str, id: str, dtype: str | None = None
) -> Case | NotDeclaredCase:
    """The case of a model under an id of its own."""
    shape = served(target, kind, dtype)
    if isinstance(shape, Reject):
        return NotDeclaredCase(id, shape.pointer, str(shape))
    return Case(id, asdict(shape))
