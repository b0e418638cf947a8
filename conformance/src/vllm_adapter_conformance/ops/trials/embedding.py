"""embedding: rows of a table, by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import Draw, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Put, Sample, Trial

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


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    terms=lambda facts: 1,
)
