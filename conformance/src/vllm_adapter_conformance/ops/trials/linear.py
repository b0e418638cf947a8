"""linear: x @ weight.T + bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import RandomTensors, columns, laid, streams, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._values import row_values


def _reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> Sequence[Expected]:
    shift = torch.zeros(out_features, dtype=x.dtype) if bias is None else bias
    magnitude = (x.square() @ weight.square().T + shift.square()).sqrt()
    half = x.shape[-1] // 2
    first, second = (x[..., part] @ weight[:, part].T for part in (slice(half), slice(half, None)))
    value = first + second + shift
    # Roundings are those of the sums on the way, which may be larger than the last one.
    onway = torch.maximum(first.abs(), torch.maximum(second.abs(), value.abs()))
    return [Expected(value, magnitude, (onway / magnitude).nan_to_num(1).clamp(min=1))]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    width, out, dtype = int(facts["in_features"]), int(facts["out_features"]), torch_dtype(facts)

    def sample(name: str, *rows: int, strided: bool = False) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "linear", name)
            x = draw.normal(*rows, width * (2 if strided else 1), dtype=dtype)
            weight = draw.normal(out, width, dtype=dtype, scale=width**-0.5)
            bias = to_device(draw.normal(out, dtype=dtype)) if facts["bias"] else None
            return (
                columns(to_device, x, x.shape[-1] - width, x.shape[-1]),
                to_device(weight),
                bias,
                out,
            )

        return Sample(name, build)

    return [
        sample("rows", 5),
        sample("one row", 1),
        sample("no row", 0),
        sample("three dimensions", 2, 3),
        sample("strided rows", 7, strided=True),
    ]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    width, out, dtype = int(facts["in_features"]), int(facts["out_features"]), torch_dtype(facts)

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, _ = streams("linear", seed, contents)
        x = row_values(draw, choice["values"], (*choice["rows"], width), dtype)
        weight = draw.quick(out, width, dtype=dtype, scale=width**-0.5)
        half = width // 2
        if choice["values"] in ("opposite", "positive"):
            weight = weight.abs()
        if choice["values"] == "opposite":
            # Half of the sum is beyond float16, and the whole is nothing.
            x, weight = x * 60, weight * (60 * max(1, half) ** 0.5)
        if choice["values"] in ("cancelling", "opposite"):
            weight[:, half : 2 * half] = weight[:, :half]
        bias = None
        if facts["bias"]:
            bias = laid(to_device, draw.quick(out, dtype=dtype), choice["shift"])
        return (
            laid(to_device, x, choice["layout"]),
            laid(to_device, weight, choice["weights"]),
            bias,
            out,
        )

    return Sample(f"drawn: {dict(choice)}", build)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    terms=lambda facts: int(facts["in_features"]),
)
