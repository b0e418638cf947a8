"""How fast the device and calls of its operators are: plain numbers come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from .timed_arguments import ArgumentMaker, TimedArguments
from .timing import Call, Stopwatch, in_turn

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

MIB: Final = 1 << 20
COPIED: Final = (MIB // 4, 4 * MIB, 32 * MIB, 256 * MIB)
"""Bytes that one copy reads, and as many again that it writes."""
SIDES: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Of the square matrices that are multiplied."""
ONE_CALL_S: Final = 0.02
"""No larger product is tried after one that took so long."""
SLOW_READ: Final = 3.0
LONG_COPY_S: Final = 0.005
"""The same of copies: by then a launch is nothing to them."""
UNKNOWN_CACHE: Final = 64 * MIB
TIMES_CACHE: Final = 4
MOST_TURNS: Final = 16
MOST_SETS: Final = 64
MEMORY_PART: Final = 8
"""At most one part in so many of the free memory is taken for rotation."""
SAMPLES: Final = 9
LEAST_SAMPLES: Final = 6
"""From six on the interval of a median has a confidence."""
ENOUGH_S: Final = 15.0
"""No larger size is begun after so long."""
SLOW_S: Final = 0.5
FEW_SAMPLES: Final = 3
"""Of calls that take longer than `SLOW_S`."""
WARM_S: Final = 0.2


def look_memory(device: HeldDevice) -> dict[str, Any]:
    """Seconds of copies and reads at several sizes, and of a launch, with the bytes of each.

    Gives `cache_bytes` (what the device or system says, or None), `clock`, `launch` (seconds) and
    rows `what, bytes, beyond, seconds`; `beyond`: its buffers are several times the caches.
    """
    watch, cache = Stopwatch(device), cache_bytes(device)
    small = [torch.zeros(1, device=device.device) for _ in range(2)]
    _warm(watch, lambda: small[0].copy_(small[1]))
    launch = _samples(watch, lambda: small[0].copy_(small[1]))
    rows: list[dict[str, Any]] = []
    reads, until = True, time.monotonic() + ENOUGH_S
    for size in COPIED:
        if 2 * size > _free(device) // MEMORY_PART:
            break
        beyond = TIMES_CACHE * (cache or UNKNOWN_CACHE)
        copy, turns = copying(device, size, cache)
        copied = _row("copy", 2 * size, 2 * size * turns >= beyond, _samples(watch, copy))
        rows.append(copied)
        least = min(copied["seconds"])
        if reads:
            read = reading(device, size, cache)
            rows.append(_row("read", size, size * turns >= beyond, _samples(watch, read)))
            # Sums that are so much slower than copies are no reads, and say nothing.
            reads = min(rows[-1]["seconds"]) < SLOW_READ * least
        if least > LONG_COPY_S and (copied["beyond"] or least > ONE_CALL_S):
            break
        if time.monotonic() > until:
            break
    return {"cache_bytes": cache, "clock": watch.clock, "launch": launch, "rows": rows}


def _row(what: str, size: int, beyond: bool, seconds: list[float]) -> dict[str, Any]:
    return {"what": what, "bytes": size, "beyond": beyond, "seconds": seconds}


def look_compute(device: HeldDevice, *, dtype: str, own_linear: bool) -> dict[str, Any]:
    """Seconds of products of square matrices: rows `side, flops, seconds`, and the `clock`."""
    watch, rows = Stopwatch(device), []
    until = time.monotonic() + ENOUGH_S
    for side in SIDES:
        if 4 * side * side * 4 > _free(device) // MEMORY_PART:
            break
        call = multiplying(device, side, dtype, own_linear=own_linear)
        taken = _samples(watch, call)
        rows.append({"side": side, "flops": 2 * side**3, "seconds": taken})
        if min(taken) > ONE_CALL_S or time.monotonic() > until:
            break
    return {"clock": watch.clock, "rows": rows}


def look_call(
    device: HeldDevice,
    *,
    op: str,
    facts: Mapping[str, Any],
    dims: Mapping[str, int],
    beside: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """Seconds of calls of an operator, and in turn of what bounds it.

    `beside` names that: {"what": "copy" or "read", "bytes"} or {"what": "gemm", "side", "dtype",
    "own_linear"}. About `seconds` are spent. Gives `taken` and `beside`, lists of equal length,
    `turns` (sets of arguments that took turns), `beyond` (together they are several times the
    caches), the `clock`, torch's version and its threads.
    """
    watch, cache = Stopwatch(device), cache_bytes(device)
    binding = device.bind(op, dict(facts))
    maker = ArgumentMaker(device, str(facts["dtype"]))
    first = maker.make(op, facts, dims)
    sets = [first]
    room = _free(device) // MEMORY_PART
    wanted = TIMES_CACHE * (cache or UNKNOWN_CACHE) // max(1, first.touched) + 1
    for _ in range(min(wanted, room // max(1, first.touched), MOST_SETS) - 1):
        sets.append(maker.another(op, first, len(sets)))
    for one in sets:
        if one.weight is not None:
            one.args[one.weight] = binding.prepare_weights(one.args[one.weight])
        if one.step is not None:
            one.args[-1] = binding.handle
    if first.step is not None:
        binding.plan(first.step)  # once a step, for all layers
    call = in_turn([_calling(binding.run, one) for one in sets])
    other = _besides(device, beside, cache)
    numbers = watch.calls_for(call), watch.calls_for(other)
    taken: list[float] = []
    others: list[float] = []
    until = time.monotonic() + seconds
    least = LEAST_SAMPLES
    while len(taken) < least or (len(taken) < 4 * SAMPLES and time.monotonic() < until):
        taken.append(watch.seconds(call, numbers[0]))
        others.append(watch.seconds(other, numbers[1]))
        least = FEW_SAMPLES if min(taken) > SLOW_S else LEAST_SAMPLES
    return {
        "taken": taken,
        "beside": others,
        "turns": len(sets),
        "beyond": sum(one.touched for one in sets) >= TIMES_CACHE * (cache or UNKNOWN_CACHE),
        "clock": watch.clock,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def cache_bytes(device: HeldDevice) -> int | None:
    """The last cache before memory, as the device or the system says; None: it does not."""
    if device.device.type != "cpu":
        ask = getattr(torch.get_device_module(device.device), "get_device_properties", None)
        found = getattr(ask(device.device), "L2_cache_size", None) if ask else None
        return int(found) if found else None
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = [text for text in (path.read_text().strip() for path in sizes) if text]
    return max((int(t[:-1]) * units[t[-1]] for t in found if t[-1] in units), default=None)


def copying(device: HeldDevice, size: int, cache: int | None) -> tuple[Call, int]:
    """A copy of `size` bytes between buffers that take turns, and how many pairs there are."""
    turns = _turns(device, 2 * size, cache)
    buffers = _buffers(device, size, 2 * turns)

    def copy(to: torch.Tensor, source: torch.Tensor) -> Call:
        return lambda: to.copy_(source)

    pairs = zip(buffers[::2], buffers[1::2], strict=True)
    return in_turn([copy(to, source) for to, source in pairs]), turns


def reading(device: HeldDevice, size: int, cache: int | None) -> Call:
    """A sum over `size` bytes of float32, of buffers that take turns."""
    turns = _turns(device, 2 * size, cache)
    buffers = [b.view(torch.float32).view(-1, 4096) for b in _buffers(device, size, turns)]

    def read(buffer: torch.Tensor) -> Call:
        return lambda: buffer.sum(-1)

    return in_turn([read(buffer) for buffer in buffers])


def multiplying(device: HeldDevice, side: int, dtype: str, *, own_linear: bool) -> Call:
    """A product of two square matrices: torch's, or the adapter's own linear."""
    maker = ArgumentMaker(device, dtype)
    sizes = {"in_features": side, "out_features": side}
    facts = {"dtype": dtype, **sizes, "bias": False}
    made = maker.make("linear", facts, {"tokens": side, **sizes})
    if own_linear:
        binding = device.bind("linear", facts)
        made.args[1] = binding.prepare_weights(made.args[1])
        return _calling(binding.run, made)
    x, weight = made.args[:2]
    return lambda: torch.matmul(x, weight)


def _besides(device: HeldDevice, what: Mapping[str, Any], cache: int | None) -> Call:
    if what["what"] == "copy":
        return copying(device, what["bytes"] // 2, cache)[0]
    if what["what"] == "read":
        return reading(device, what["bytes"], cache)
    return multiplying(device, what["side"], what["dtype"], own_linear=what["own_linear"])


def _calling(run: Callable[..., Any], one: TimedArguments) -> Call:
    args = one.args
    return lambda: run(*args)


def _turns(device: HeldDevice, size: int, cache: int | None) -> int:
    """How many buffers of a size make several times the caches, within the memory."""
    wanted = -(-TIMES_CACHE * (cache or UNKNOWN_CACHE) // size)
    return max(1, min(wanted, MOST_TURNS, _free(device) // MEMORY_PART // size))


def _buffers(device: HeldDevice, size: int, count: int) -> list[torch.Tensor]:
    """So many uint8[size] on the device; written to: memory that never was has no pages."""
    first = device.to_device(torch.zeros(size, dtype=torch.uint8))
    return [first, *(first.clone() for _ in range(count - 1))]


def _free(device: HeldDevice) -> int:
    return device.runtime.query_memory_capacity(device.index).free_bytes


def _samples(watch: Stopwatch, call: Call) -> list[float]:
    number = watch.calls_for(call)
    found = [watch.seconds(call, number)]
    wanted = FEW_SAMPLES if found[0] > SLOW_S else SAMPLES
    return found + [watch.seconds(call, number) for _ in range(wanted - 1)]


def _warm(watch: Stopwatch, call: Call) -> None:
    """Clocks rise with work."""
    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        call()
    watch.wait()
