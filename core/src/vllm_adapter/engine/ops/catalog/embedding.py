"""embedding: rows of a table, by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.draw import Draw, torch_dtype
from vllm_adapter.engine.ops.spec import Expected, Facts, OpSpec, Put, Sample, dtype_name
from vllm_adapter.operators import OPERATORS

ROWS: Final = 50


def _reference(ids: torch.Tensor, weight: torch.Tensor) -> Sequence[Expected]:
    value = weight[ids]
    # A copy is exact: with magnitude zero the tolerance is zero too.
    return [Expected(value, torch.zeros_like(value))]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def sample(name: str, *shape: int) -> Sample:
        def build(put: Put) -> tuple[object, ...]:
            draw = Draw(seed, "embedding", name)
            ids = draw.integers(0, ROWS, *shape)
            ids.flatten()[:2] = torch.tensor([ROWS - 1, 0])[: ids.numel()]
            return put(ids), put(draw.normal(ROWS, hidden, dtype=dtype))

        return Sample(name, build)

    return [
        sample("tokens", 9),
        sample("one token", 1),
        sample("no token", 0),
        sample("two dimensions", 2, 3),
    ]


SPEC: Final = OpSpec(
    operator=OPERATORS["embedding"],
    schema="(Tensor ids, Tensor weight) -> Tensor",
    fake=lambda ids, weight: weight.new_empty((*ids.shape, weight.shape[-1])),
    reference=_reference,
    generic=generic.embedding,
    facts_of=lambda ids, weight: {"dtype": dtype_name(weight), "hidden": weight.shape[-1]},
    key_of=lambda ids, weight: (weight.dtype, weight.device, weight.shape[-1]),
    samples=_samples,
    terms=lambda facts: 1,
)
