"""silu_and_mul: silu(first half) * second half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import RandomTensors, columns, laid, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._values import gate_values, up_values

_LEAST: Final = 1e-290
"""Below this the quotient of float64 numbers leaves their range."""


def _reference(x: torch.Tensor) -> Sequence[Expected]:
    gate, up = x.chunk(2, dim=-1)
    value = F.silu(gate) * up
    # A rounding of the gate before its exponential grows with the gate.
    growth = 1 + gate.abs()
    # x/2 (1 + tanh(x/2)) is silu as well: a sigmoid that is made of 1 + tanh has lost what both
    # have in common, so that its error in float32 is one rounding of 1, and that of the result a
    # rounding of gate times up. A value below all that float32 holds is compared as it is.
    cancelled = (gate * up).abs() / value.abs()
    growth = torch.where(value.abs() > _LEAST, growth + cancelled, growth)
    return [Expected(value, value.abs(), growth)]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    width, dtype = 2 * int(facts["hidden"]), torch_dtype(facts)

    def sample(name: str, *rows: int, scale: float = 1.0, strided: bool = False) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "silu_and_mul", name)
            wide = draw.normal(*rows, width + (3 if strided else 0), dtype=dtype, scale=scale)
            return (columns(to_device, wide, wide.shape[-1] - width, wide.shape[-1]),)

        return Sample(name, build)

    return [
        sample("rows", 5),
        sample("one row", 1),
        sample("no row", 0),
        sample("three dimensions", 2, 3),
        sample("strided rows", 7, strided=True),
        sample("saturated gates", 4, scale=15.0),
    ]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw = RandomTensors(0, "silu_and_mul", seed, contents)
        shape = (*choice["rows"], int(facts["hidden"]))
        gate = gate_values(draw, choice["values"], shape, torch_dtype(facts))
        both = torch.cat((gate, up_values(draw, choice["values"], gate)), -1)
        return (laid(to_device, both, choice["layout"]),)

    return Sample(f"drawn: {dict(choice)}", build)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    terms=lambda facts: 1,
)
