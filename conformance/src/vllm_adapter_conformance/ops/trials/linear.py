"""linear: x @ weight.T + bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import Draw, columns, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Put, Sample, Trial


def _reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> Sequence[Expected]:
    shift = torch.zeros(out_features, dtype=x.dtype) if bias is None else bias
    squares = x.square() @ weight.square().T + shift.square()
    return [Expected(x @ weight.T + shift, squares.sqrt())]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    width, out, dtype = int(facts["in_features"]), int(facts["out_features"]), torch_dtype(facts)

    def sample(name: str, *rows: int, strided: bool = False) -> Sample:
        def build(put: Put) -> tuple[object, ...]:
            draw = Draw(seed, "linear", name)
            x = draw.normal(*rows, width * (2 if strided else 1), dtype=dtype)
            weight = draw.normal(out, width, dtype=dtype, scale=width**-0.5)
            bias = put(draw.normal(out, dtype=dtype)) if facts["bias"] else None
            return columns(put, x, x.shape[-1] - width, x.shape[-1]), put(weight), bias, out

        return Sample(name, build)

    return [
        sample("rows", 5),
        sample("one row", 1),
        sample("no row", 0),
        sample("three dimensions", 2, 3),
        sample("strided rows", 7, strided=True),
    ]


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    terms=lambda facts: int(facts["in_features"]),
)
