"""layer_norm: (x - mean) / sqrt(var + eps) * weight + bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import RandomTensors, columns, laid, streams, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._values import row_values

EPS: Final = 1e-6


def _reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> Sequence[Expected]:
    mean = x.mean(-1, keepdim=True)
    scale = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    shift = torch.zeros_like(weight) if bias is None else bias
    value = (x - mean) * scale * weight + shift
    # The mean's error is as large as the row, and stays where an element is close to the mean.
    row = x.square().mean(-1, keepdim=True).sqrt()
    terms = ((x.abs() + row) * scale * weight).square() + shift.square()
    return [Expected(value, terms.sqrt())]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def sample(
        name: str,
        *rows: int,
        scale: float = 1.0,
        offset: float = 0.0,
        strided: bool = False,
    ) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "layer_norm", name)
            wide = draw.normal(*rows, hidden * (2 if strided else 1), dtype=dtype, scale=scale)
            bias = to_device(draw.normal(hidden, dtype=dtype)) if facts["bias"] else None
            weight = to_device(draw.normal(hidden, dtype=dtype))
            return columns(to_device, wide + offset, 0, hidden), weight, bias, EPS

        return Sample(name, build)

    return [
        sample("rows", 5),
        sample("one row", 1),
        sample("no row", 0),
        sample("three dimensions", 2, 3),
        sample("strided rows", 7, strided=True),
        sample("variance near epsilon", 4, scale=1e-3),
        sample("mean far from zero", 4, offset=30.0),
        sample("squares beyond float16", 4, scale=1e3),
    ]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    hidden, dtype = int(facts["hidden"]), torch_dtype(facts)

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, _ = streams("layer_norm", seed, contents)
        x = row_values(draw, choice["values"], (*choice["rows"], hidden), dtype)
        weight, bias = draw.quick(2, hidden, dtype=dtype)
        scale = laid(to_device, weight.clone(), choice["weights"])
        shift = scale if choice["shift"] == "the weight" else None
        if shift is None:
            shift = laid(to_device, bias.clone(), choice["shift"])
        shift = shift if facts["bias"] else None
        return laid(to_device, x, choice["layout"]), scale, shift, choice["eps"]

    return Sample(f"drawn: {dict(choice)}", build)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    terms=lambda facts: int(facts["hidden"]),
)
