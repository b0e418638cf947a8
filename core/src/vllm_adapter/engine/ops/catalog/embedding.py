"""embedding: rows of a table, by their numbers."""

from __future__ import annotations

from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.spec import OpSpec, dtype_name

SPEC: Final = OpSpec(
    operator=OPERATORS["embedding"],
    schema="(Tensor ids, Tensor weight) -> Tensor",
    fake=lambda ids, weight: weight.new_empty((*ids.shape, weight.shape[-1])),
    generic=generic.embedding,
    facts_of=lambda ids, weight: {"dtype": dtype_name(weight), "hidden": weight.shape[-1]},
    key_of=lambda ids, weight: (weight.dtype, weight.device, weight.shape[-1]),
)
