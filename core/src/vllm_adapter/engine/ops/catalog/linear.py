"""linear: x @ weight.T + bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.draw import Draw, columns, torch_dtype
from vllm_adapter.engine.ops.spec import Expected, Facts, OpSpec, Put, Sample, dtype_name
from vllm_adapter.operators import OPERATORS, FactValue


def _fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    # Never the weight's shape: prepare_weights may have packed it.
    return x.new_empty((*x.shape[:-1], out_features))


def _reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> Sequence[Expected]:
    shift = torch.zeros(out_features, dtype=x.dtype) if bias is None else bias
    squares = x.square() @ weight.square().T + shift.square()
    return [Expected(x @ weight.T + shift, squares.sqrt())]


def _facts_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> dict[str, FactValue]:
    return {
        "dtype": dtype_name(x),
        "in_features": x.shape[-1],
        "out_features": out_features,
        "bias": bias is not None,
    }


def _key_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> tuple[object, ...]:
    return x.dtype, x.device, x.shape[-1], out_features, bias is None


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


SPEC: Final = OpSpec(
    operator=OPERATORS["linear"],
    schema="(Tensor x, Tensor weight, Tensor? bias, int out_features) -> Tensor",
    fake=_fake,
    reference=_reference,
    generic=generic.linear,
    facts_of=_facts_of,
    key_of=_key_of,
    samples=_samples,
    terms=lambda facts: int(facts["in_features"]),
)
