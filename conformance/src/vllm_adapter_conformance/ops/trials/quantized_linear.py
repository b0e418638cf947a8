"""quantized_linear: x @ (weight * scale + zero).T + bias, of weights in fewer bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.contract.operators import INT4_GROUP
from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import RandomTensors, laid, streams, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._values import row_values

FLOAT8_EPS: Final = 0.125
"""Of a float of three mantissa bits: what rounding x to it may cost, for each element."""
ACCUMULATE: Final = torch.finfo(torch.float32).eps
LEVELS: Final = {"int8": 127, "int4": 15}


def _reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_features: int,
    scheme: str,
) -> Sequence[Expected]:
    width = x.shape[-1]
    values = _weights(weight, scale, zero, width, scheme)
    shift = torch.zeros(out_features, dtype=x.dtype) if bias is None else bias
    magnitude = (x.square() @ values.square().T + shift.square()).sqrt()
    half = width // 2
    first, second = (x[..., part] @ values[:, part].T for part in (slice(half), slice(half, None)))
    value = first + second + shift
    onway = torch.maximum(first.abs(), torch.maximum(second.abs(), value.abs()))
    amplification = (onway / magnitude).nan_to_num(1).clamp(min=1)
    if scheme.startswith("float8"):
        # x is rounded, row by row: each of its terms is wrong by a part of itself.
        amplification = amplification.clamp(min=FLOAT8_EPS / (ACCUMULATE * width**0.5))
    return [Expected(value, magnitude, amplification)]


def _weights(
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    width: int,
    scheme: str,
) -> torch.Tensor:
    """float64[out, in]: what the stored values stand for."""
    if scheme != "int4":
        return weight.double() * scale
    assert zero is not None
    values = torch.empty(weight.shape[0], width, dtype=torch.float64)
    for column in range(width):
        byte = weight[:, column // 2].long()
        level = byte // 16 if column % 2 else byte % 16
        group = column // INT4_GROUP
        values[:, column] = level * scale[:, group] + zero[:, group]
    return values


def _stored(
    draw: RandomTensors, scheme: str, out: int, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Values, scales and zero points of weights of about width^-0.5 in each element."""
    size = width**-0.5
    if scheme == "int4":
        groups = -(-width // INT4_GROUP)
        values = draw.integers(0, 256, out, -(-width // 2)).to(torch.uint8)
        scale = draw.log_uniform(0.1, 0.5, out, groups, dtype=torch.float32).abs() * size
        zero = draw.quick(out, groups, dtype=torch.float32, scale=size) - 7 * scale
        return values, scale, zero
    scale = draw.log_uniform(0.5, 2.0, out, 1, dtype=torch.float32).abs() * size
    if scheme == "int8":
        most = LEVELS[scheme]
        return draw.integers(-most, most + 1, out, width).to(torch.int8), scale / 64, None
    values = draw.quick(out, width, dtype=torch.float32).clamp(-4, 4)
    return (values * 50).to(getattr(torch, scheme)), scale / 50, None


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    width, out, dtype = int(facts["in_features"]), int(facts["out_features"]), torch_dtype(facts)
    scheme = str(facts["scheme"])

    def sample(name: str, *rows: int) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "quantized_linear", name)
            x = draw.normal(*rows, width, dtype=dtype)
            stored = _stored(draw, scheme, out, width)
            bias = to_device(draw.normal(out, dtype=dtype)) if facts["bias"] else None
            held = [None if part is None else to_device(part) for part in stored]
            return to_device(x), *held, bias, out, scheme

        return Sample(name, build)

    return [
        sample("rows", 5),
        sample("one row", 1),
        sample("no row", 0),
        sample("three dimensions", 2, 3),
    ]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    width, out, dtype = int(facts["in_features"]), int(facts["out_features"]), torch_dtype(facts)
    scheme = str(facts["scheme"])

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, _ = streams("quantized_linear", seed, contents)
        x = row_values(draw, choice["values"], (*choice["rows"], width), dtype)
        stored = _stored(draw, scheme, out, width)
        bias = None
        if facts["bias"]:
            bias = laid(to_device, draw.quick(out, dtype=dtype), choice["shift"])
        held = [None if part is None else to_device(part) for part in stored]
        return laid(to_device, x, choice["layout"]), *held, bias, out, scheme

    return Sample(f"drawn: {dict(choice)}", build)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    as_stored=frozenset({1}),
    terms=lambda facts: int(facts["in_features"]),
)
