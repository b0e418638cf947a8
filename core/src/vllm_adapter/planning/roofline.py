"""Roofline arithmetic: peak rate, bandwidth, the model's products and phases on one rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.planning.demand import ModelDemand
from vllm_adapter.planning.dtypes import BITS
from vllm_adapter.planning.line import Figures
from vllm_adapter.planning.tensors import TensorGroup, WeightPacking

ASSUMED_GB_S: Final = 500.0
ASSUMED_CPU_GB_S: Final = 8.0
"""Of one thread. Measured on one host: 12 of one thread, 15.5 of two."""
ASSUMED_RIDGE: Final = 200.0
"""Operations a byte at which a device is as busy computing as reading: data sheets have 80-300."""
ASSUMED_CPU_GFLOPS: Final = 48.0
"""Of one thread in float32 with AVX2; measured on one host: 54."""
EMULATED_SHARE: Final = 1 / 8
"""Rate of a dtype that is stored and computed in another, as a share of float32's. Measured on a
host with AVX2 alone: 14 of 95-131 GFLOP/s, since each product converts its weights again."""
GIGA: Final = 1e9


@dataclass(frozen=True, slots=True)
class Rates:
    """Peaks of one device: operations a second in the dtype of products, bytes a second."""

    flops: float
    bytes: float

    @property
    def ridge(self) -> float:
        """Operations a byte at which both limits meet."""
        return self.flops / self.bytes

    def seconds(self, flops: float, moved: float) -> float:
        """The roofline's time: the longer of computing and moving."""
        return max(flops / self.flops, moved / self.bytes)


@dataclass(frozen=True, slots=True)
class Gemm:
    """One product [m, k] x [k, n] on one rank; `calls` a step, `weight_bytes` of one."""

    name: str
    n: int
    k: int
    calls: float
    weight_bytes: int

    def flops(self, m: int) -> float:
        """Operations of one call, a multiply-add being two."""
        return 2.0 * m * self.n * self.k

    def intensity(self, m: int, element: float) -> float:
        """Operations a byte; `element`: bytes of an activation."""
        moved = self.weight_bytes + element * m * (self.n + self.k)
        return self.flops(m) / moved

    def to_json(self, decode: int, prefill: int, element: float, ridge: float) -> dict[str, Any]:
        """A JSON object: shapes [m, n, k] and operations a byte of both phases."""
        phases = {}
        for phase, m in (("decode", decode), ("prefill", prefill)):
            found = self.intensity(m, element)
            phases[phase] = {
                "shape": [m, self.n, self.k],
                "flops_a_byte": round(found, 2),
                "bound": "compute" if found >= ridge else "memory",
            }
        return {"name": self.name, "calls_a_step": round(self.calls, 2), **phases}


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of step on one rank: what it computes, moves, and how long that takes at best."""

    name: str
    tokens: int
    flops: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes

    @property
    def tokens_a_second(self) -> float:
        """Tokens of one replica at the roofline."""
        return self.tokens / self.seconds

    def to_json(self, ridge: float) -> dict[str, Any]:
        """A JSON object."""
        return {
            "phase": self.name,
            "tokens": self.tokens,
            "flops": self.flops,
            "bytes": self.bytes,
            "flops_a_byte": round(self.intensity, 2),
            "bound": "compute" if self.intensity >= ridge else "memory",
            "seconds": self.seconds,
            "tokens_a_second": round(self.tokens_a_second, 1),
        }


def rates(figures: Figures, dtype: str) -> Rates:
    """The device's peaks for products in a dtype; what is null is assumed, and said."""
    cpu = figures.capability.identity.torch_type == "cpu"
    bandwidth = figures.read("/memory/bandwidth_gb_s")
    threads = figures.read("/compute_units/float32/max_threads") if cpu else None
    if bandwidth is None:
        bandwidth = ASSUMED_CPU_GB_S * (threads or 1) if cpu else ASSUMED_GB_S
        figures.assume(f"memory bandwidth is not known: {bandwidth:g} GB/s assumed")
    peak = _peak(figures, dtype)
    if peak is None and cpu:
        peak = ASSUMED_CPU_GFLOPS * (threads or 1)
        figures.assume(f"the peak of float32 is not known: {peak:g} GFLOP/s assumed")
    if peak is None:
        peak = ASSUMED_RIDGE * bandwidth
        figures.assume(
            f"the peak of {dtype} is not known: {ASSUMED_RIDGE:g} operations a byte assumed"
        )
    elif figures.read(f"/compute_units/{dtype}/emulated"):
        peak *= EMULATED_SHARE
        figures.assume(f"{dtype} is computed in another dtype: an eighth of the rate assumed")
    return Rates(peak * GIGA, bandwidth * GIGA)


def _peak(figures: Figures, dtype: str) -> float | None:
    """GFLOP/s of a dtype; without one of its own, that of the dtype it is computed in."""
    for name in dict.fromkeys((dtype, "float16" if BITS[dtype] <= 16 else dtype)):
        unit = figures.capability.compute_units.get(name)
        if unit is not None and unit.peak_gflops is not None:
            if unit.throughput_gflops is not None:
                return float(figures.read(f"/compute_units/{name}/throughput_gflops"))
            for part in ("ops_per_clock_per_unit", "units", "clock_ghz"):
                figures.read(f"/compute_units/{name}/{part}")
            return unit.peak_gflops
    return None


def gemms(
    demand: ModelDemand, ranks: int, tokens: int, dtype: str, packing: WeightPacking | None
) -> tuple[Gemm, ...]:
    """The model's products on one rank of a group, for a step of so many tokens."""
    return tuple(_gemms(demand, ranks, tokens, dtype, packing))


def _gemms(
    demand: ModelDemand, ranks: int, tokens: int, dtype: str, packing: WeightPacking | None
) -> Iterator[Gemm]:
    for group in demand.tensors:
        if len(group.shape) != 2 or not (group.linear or group.product):
            continue
        rows, columns = split_shape(group, ranks, demand.shape.kv_heads)
        part = TensorGroup(group.name, (rows, columns), linear=group.linear)
        size = packing.all_bytes(part, dtype) if packing else part.bytes(dtype)
        calls = float(len(group.layers))
        if group.experts > 1:
            assert demand.shape.experts is not None
            # the tokens of a step go to their experts; each expert that is met is one product
            calls *= met(group.experts, demand.shape.experts.each_token, tokens)
        yield Gemm(group.name, rows, columns, calls, size)
    if demand.shape.tied and demand.shape.head:
        rows = -(-demand.shape.vocab // ranks)
        part = TensorGroup("lm_head (tied)", (rows, demand.shape.hidden), linear=False)
        yield Gemm(part.name, rows, demand.shape.hidden, 1.0, part.bytes(dtype))


def met(experts: int, each: int, tokens: int) -> float:
    """How many experts a step of tokens meets, if each token picks evenly."""
    return experts * (1 - (1 - each / experts) ** tokens)


def split_shape(group: TensorGroup, ranks: int, kv_heads: int) -> tuple[int, int]:
    """[rows, columns] of a product's part on one rank."""
    rows, columns = group.shape
    if group.split in ("column", "vocab", "experts"):
        return -(-rows // ranks), columns
    if group.split == "kv":
        return rows // kv_heads * max(1, -(-kv_heads // ranks)), columns
    if group.split == "row":
        return rows, -(-columns // ranks)
    return rows, columns


def step(
    demand: ModelDemand,
    products: tuple[Gemm, ...],
    peaks: Rates,
    *,
    name: str,
    sequences: int,
    new: int,
    context: int,
    kv_dtype: str,
    ranks: int = 1,
) -> Phase:
    """A step in which each sequence gets `new` tokens and has `context` tokens in the end.

    Products are computed for all tokens, the output head for one of each sequence; attention
    reads the KV cache of each sequence once.
    """
    tokens = sequences * new
    each = demand.shape.experts
    flops = moved = 0.0
    for one in products:
        rows = sequences if one.name.startswith("lm_head") else tokens
        share = 1.0
        if each is not None and "{expert}" in one.name:
            share = each.each_token / (one.calls / len(each.layers))
        flops += one.calls * one.flops(rows) * share
        moved += one.calls * one.weight_bytes
    past = context - new / 2
    for layer in demand.kv_layers:
        seen = min(past, layer.window) if layer.window else past
        wide = demand.shape.heads * demand.shape.head_dim / ranks
        flops += 4.0 * tokens * seen * wide
    moved += sequences * demand.kv_bytes(kv_dtype, context, ranks)
    moved += BITS[demand.dtype] / 8 * tokens * demand.shape.hidden * 4 * demand.shape.layers
    return Phase(name, tokens, flops, moved, peaks.seconds(flops, moved))


def power_of_two(value: float) -> int:
    """The nearest power of two, at least one."""
    return 1 << max(0, round(math.log2(max(1.0, value))))
