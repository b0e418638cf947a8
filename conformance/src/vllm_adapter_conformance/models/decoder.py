"""What a decoder of two layers is made of, built where the device is. Imports torch."""

from __future__ import annotations

from typing import Any, Final

import torch

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.models.decoder_shape import DecoderShape
from vllm_adapter_conformance.ops.draw import RandomTensors
from vllm_adapter_conformance.ops.runs import bind_declared

LAYERS: Final = 2
POSITIONS: Final = 64


def decoder(bench: Bench, shape: DecoderShape) -> dict[str, Any]:
    """As `device_side.decoder.phases` takes it.

    Raises:
        Failure: an operator of it is refused.
    """
    for op, facts in shape.needs():
        bind_declared(bench, op, facts)
    dtype, draw = getattr(torch, shape.dtype), RandomTensors(bench.target.seed, "decoder")
    hidden = shape.hidden
    sizes = {
        "qkv": (hidden, shape.qkv),
        "o": (hidden, hidden),
        "gate_up": (hidden, 2 * hidden),
        "down": (hidden, hidden),
    }

    def layer() -> dict[str, Any]:
        weights: dict[str, Any] = {
            name: draw.normal(out, width, dtype=dtype, scale=width**-0.5)
            for name, (width, out) in sizes.items()
        }
        return weights | {"norms": [draw.normal(hidden, dtype=dtype) for _ in range(2)]}

    half = torch.linspace(0, 1, shape.head_size // 2, dtype=torch.float64)
    angles = torch.arange(POSITIONS).double().outer(10000.0**-half)
    return {
        "heads": shape.heads,
        "head_size": shape.head_size,
        "needs": {op: facts for op, facts in shape.needs() if op != "linear"},
        "linear": {name: shape.linear(*size) for name, size in sizes.items()},
        "layers": [layer() for _ in range(LAYERS)],
        "table": torch.cat((angles.cos(), angles.sin()), -1).to(dtype),
    }
