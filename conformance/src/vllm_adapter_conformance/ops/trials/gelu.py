"""gelu and gelu_and_mul: x * Phi(x), alone and as the gate of a second half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import RandomTensors, columns, laid, streams, torch_dtype
from vllm_adapter_conformance.ops.trial import (
    Expected,
    Sample,
    SampleDrawer,
    SampleMaker,
    ToDevice,
    Trial,
)
from vllm_adapter_conformance.ops.trials._values import gate_values, up_values


def _gelu(x: torch.Tensor, tanh: bool) -> torch.Tensor:
    return F.gelu(x, approximate="tanh" if tanh else "none")


def _alone(x: torch.Tensor, tanh: bool) -> Sequence[Expected]:
    # 1 + erf(x) loses all that it has in common with 1: errors are as large as those of x.
    return [Expected(_gelu(x, tanh), x.abs(), 1 + x.abs())]


def _gated(x: torch.Tensor, tanh: bool) -> Sequence[Expected]:
    gate, up = x.chunk(2, dim=-1)
    return [Expected(_gelu(gate, tanh) * up, (gate * up).abs(), 1 + gate.abs())]


def _samples(name_of_op: str, halves: int) -> SampleMaker:
    def make(facts: Facts, seed: int) -> Sequence[Sample]:
        width, dtype = halves * int(facts["hidden"]), torch_dtype(facts)

        def sample(name: str, *rows: int, scale: float = 1.0, strided: bool = False) -> Sample:
            def build(to_device: ToDevice) -> tuple[object, ...]:
                draw = RandomTensors(seed, name_of_op, name)
                wide = draw.normal(*rows, width + (3 if strided else 0), dtype=dtype, scale=scale)
                view = columns(to_device, wide, wide.shape[-1] - width, wide.shape[-1])
                return view, bool(facts["tanh"])

            return Sample(name, build)

        return [
            sample("rows", 5),
            sample("one row", 1),
            sample("no row", 0),
            sample("three dimensions", 2, 3),
            sample("strided rows", 7, strided=True),
            sample("saturated", 4, scale=8.0),
        ]

    return make


def _draw(name_of_op: str, *, gated: bool) -> SampleDrawer:
    def make(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw, _ = streams(name_of_op, seed, contents)
            shape = (*choice["rows"], int(facts["hidden"]))
            x = gate_values(draw, choice["values"], shape, torch_dtype(facts))
            if gated:
                x = torch.cat((x, up_values(draw, choice["values"], x)), -1)
            return laid(to_device, x, choice["layout"]), bool(facts["tanh"])

        return Sample(f"drawn: {dict(choice)}", build)

    return make


GELU: Final = Trial(
    reference=_alone,
    samples=_samples("gelu", 1),
    draw=_draw("gelu", gated=False),
    terms=lambda facts: 1,
)
GELU_AND_MUL: Final = Trial(
    reference=_gated,
    samples=_samples("gelu_and_mul", 2),
    draw=_draw("gelu_and_mul", gated=True),
    terms=lambda facts: 1,
)
