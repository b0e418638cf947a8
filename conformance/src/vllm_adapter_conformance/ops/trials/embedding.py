"""embedding: rows of a table, by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import (
    RandomTensors,
    in_order,
    laid,
    middle_turned,
    streams,
    torch_dtype,
)
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._values import copied_values

ROWS: Final = 50
EDGES: Final = (65536, 32768, 256, 2049, 128, 65535, 32767, 255, 127, 2048, 1023, 1024)
"""Numbers that do not fit some integers."""


def _reference(ids: torch.Tensor, weight: torch.Tensor) -> Sequence[Expected]:
    value = weight[ids].double()
    # A copy is exact: with magnitude zero the tolerance is zero too.
    return [Expected(value, torch.zeros_like(value))]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def sample(name: str, *shape: int) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "embedding", name)
            ids = draw.integers(0, ROWS, *shape)
            ids.flatten()[:2] = torch.tensor([ROWS - 1, 0])[: ids.numel()]
            return to_device(ids), to_device(draw.normal(ROWS, hidden, dtype=dtype))

        return Sample(name, build)

    return [
        sample("tokens", 9),
        sample("one token", 1),
        sample("no token", 0),
        sample("two dimensions", 2, 3),
    ]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    hidden, rows, dtype = int(facts["hidden"]), choice["vocabulary"], torch_dtype(facts)

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, places = streams("embedding", seed, contents)
        ids = places.integers(0, rows, *choice["rows"])
        named = torch.tensor([rows - 1, 0, *(edge for edge in EDGES if edge < rows)])
        flat = ids.flatten()
        flat[: len(named)] = named[places.permutation(len(named))][: len(flat)]
        flat = flat[places.permutation(len(flat))]
        if choice["order"] != "mixed":
            flat = in_order(places, len(flat), rows, choice["order"])
        flat = middle_turned(flat, contents)
        # Rows that nobody asks for are no numbers.
        table = torch.full((rows, hidden), torch.nan, dtype=dtype)
        asked = torch.unique(flat)
        table[asked] = copied_values(draw, choice["values"], (len(asked), hidden), dtype)
        flat = flat.view(ids.shape)
        return laid(to_device, flat, choice["ids"]), laid(to_device, table, choice["weights"])

    return Sample(f"drawn: {dict(choice)}", build)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    as_stored=frozenset({1}),
    terms=lambda facts: 1,
)
