"""What would make a demand fit, in the order of what it costs least to change; by arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from vllm_adapter.planning.box import PlanBox
from vllm_adapter.planning.dtypes import BITS
from vllm_adapter.planning.line import Figures
from vllm_adapter.planning.negotiate import AgreedDtypes, half_kv
from vllm_adapter.planning.parallel import tensor_sizes
from vllm_adapter.planning.sizing import GIB, RankGroups, SizingInput, size
from vllm_adapter.planning.tensors import WeightPacking

_MOST_DEVICES: Final = 64


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change, all else as it is. `value` None: none is enough, and `cost` says why."""

    what: str
    value: Any
    cost: str
    flags: tuple[str, ...] = ()

    @property
    def enough(self) -> bool:
        """Whether the demand fits after it."""
        return self.value is not None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "what": self.what,
            "value": self.value,
            "enough": self.enough,
            "cost": self.cost,
            "flags": list(self.flags),
        }


def remedies(
    asked: SizingInput, box: PlanBox, dtypes: AgreedDtypes, figures: Figures
) -> tuple[Remedy, ...]:
    """Context, concurrency, KV dtype, weight dtype, more devices, in this order."""
    return tuple(_all(asked, box, dtypes, figures))


def _all(
    asked: SizingInput, box: PlanBox, dtypes: AgreedDtypes, figures: Figures
) -> Iterator[Remedy]:
    if asked.demand.kv_layers:
        yield _context(asked)
        yield _concurrency(asked)
        yield _kv_dtype(asked, box, figures)
    yield _weight_dtype(asked, box, figures)
    yield _devices(asked, box)


def _context(asked: SizingInput) -> Remedy:
    found = _largest(asked.context, lambda n: size(replace(asked, context=n)).fits)
    if not found:
        why = "not even one token fits beside the weights: no context is short enough"
        return Remedy("context", None, why)
    cost = f"sequences end at {found} tokens instead of {asked.context}"
    return Remedy("context", found, cost, ("--max-model-len", str(found)))


def _concurrency(asked: SizingInput) -> Remedy:
    if asked.concurrency == 1:
        return Remedy("concurrency", None, "one sequence alone does not fit")
    each = asked.sequences == -(-asked.concurrency // asked.groups.data)

    def holds(count: int) -> bool:
        sequences = -(-count // asked.groups.data) if each else asked.sequences
        return size(replace(asked, concurrency=count, sequences=sequences)).fits

    found = _largest(asked.concurrency, holds)
    if not found:
        return Remedy("concurrency", None, f"one sequence of {asked.context} tokens does not fit")
    cost = f"{found} sequences of {asked.context} tokens at once instead of {asked.concurrency}"
    return Remedy("concurrency", found, cost, ("--max-num-seqs", str(found)))


def _kv_dtype(asked: SizingInput, box: PlanBox, figures: Figures) -> Remedy:
    kind = half_kv(figures, box, asked.kv_dtype)
    if kind is None:
        why = "the cache is in eight bits already"
        if BITS[asked.kv_dtype] > 8:
            why = "the chip declares no eight-bit float to keep it in"
        return Remedy("kv_dtype", None, why)
    after = size(replace(asked, kv_dtype=kind))
    if not after.fits:
        return Remedy(
            "kv_dtype", None, f"in {kind} it needs {_short(after.need - after.room)} more"
        )
    cost = f"keys and values are rounded to {kind}; the cache takes half the bytes"
    return Remedy("kv_dtype", kind, cost, ("--kv-cache-dtype", "fp8"))


def _weight_dtype(asked: SizingInput, box: PlanBox, figures: Figures) -> Remedy:
    last = ""
    for kind, packing in _packings(asked, box, figures):
        after = size(replace(asked, packing=packing))
        saved = size(asked).memory.weights - after.memory.weights
        if saved <= 0:
            continue
        if after.fits:
            flags = ("--quantization", "fp8") if packing.method == "fp8" else ()
            how = "rounded while loading" if flags else "needs a checkpoint that was quantised so"
            return Remedy(
                "weight_dtype",
                kind,
                f"{saved / GIB:.2f} GiB a rank less; products are rounded to {kind}, {how}",
                flags,
            )
        missing = _short(max(after.need - after.room, -after.memory.kv))
        last = f"in {kind} the weights take {_short(after.memory.weights)} a rank, and {missing} "
        last += "are still missing"
    return Remedy("weight_dtype", None, last or "no smaller dtype of weights is declared")


def _packings(
    asked: SizingInput, box: PlanBox, figures: Figures
) -> Iterator[tuple[str, WeightPacking]]:
    kept = asked.packing.ignored if asked.packing else ()
    fp8 = half_kv(figures, box, "float16")
    if fp8 is not None:
        yield fp8, WeightPacking("fp8", "float8_e4m3fn", (0, 0), "float32", ignored=kept)
    elif "int8" in box.capability.compute_units:
        yield "int8", WeightPacking("int8", "int8", (1, 0), "float32", ignored=kept)
    yield "int4", WeightPacking("awq", "int4", (1, 128), "float16", zeros=True, ignored=kept)


def _devices(asked: SizingInput, box: PlanBox) -> Remedy:
    demand, have = asked.demand, len(box.devices)
    for tensor in tensor_sizes(demand, _MOST_DEVICES):
        groups = RankGroups(tensor)
        reserve = asked.reserve + (GIB if asked.groups.ranks == 1 and tensor > 1 else 0)
        if tensor > have and size(replace(asked, groups=groups, reserve=reserve)).fits:
            sums = 2 * demand.shape.hidden * BITS[asked.dtype] // 8 * demand.shape.layers
            return Remedy(
                "devices",
                tensor,
                f"{tensor - have} more of the same kind in one link domain; {sums:,} bytes a "
                "token are summed over them",
                ("--tensor-parallel-size", str(tensor)),
            )
    most = max(tensor_sizes(demand, _MOST_DEVICES))
    return Remedy("devices", None, f"not even {most} devices in one group hold it")


def _largest(below: int, holds: Callable[[int], bool]) -> int:
    """The largest whole number under `below` that holds, 0 if none; what holds is monotone."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _short(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
