"""What many calls leave behind."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from . import looks
from .memory import held_by_process, malloc_bytes
from .torch_streams import timed_event

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

BLOCKS: Final = 3
"""Blocks of calls, of which the least growth counts: what grows once is no leak."""
CALLS: Final = 192


def counted(holder: HeldDevice, *, device: int, count: int, size: int) -> dict[str, Any]:
    """The runtime's figures before, while and after many allocations are held."""
    runtime = holder.runtime

    def figures() -> list[Any]:
        found = runtime.memory_stats(device)
        return [found.allocated_bytes, found.live_allocations]

    before = figures()
    for _ in range(count):
        runtime.allocate_memory(size, device).free()
    held = [runtime.allocate_memory(size, device) for _ in range(count)]
    full = figures()
    for memory in held:
        memory.free()
    source = runtime.memory_stats(device).source
    return {"before": before, "full": full, "after": figures(), "source": source}


def used_by_round(holder: HeldDevice, *, device: int, rounds: int, size: int) -> list[int]:
    """Bytes in use after each round in which one piece was filled and freed.

    They are the driver's, or what this process holds where the device is the host.
    """
    data, used = bytes([1]) * size, []
    gc.collect()  # garbage of earlier cases, given back between two rounds, would hide a leak
    for _ in range(rounds):
        memory = holder.runtime.allocate_memory(size, device)
        looks.put(holder, memory, data)
        memory.free()
        del memory
        if holder.device.type == "cpu":
            used.append(held_by_process())
        else:
            found = holder.runtime.query_memory_capacity(device)
            used.append(found.total_bytes - found.free_bytes)
    return used


def growth(holder: HeldDevice, *, device: int, kind: str, size: int) -> list[dict[str, int]]:
    """What this process and the device hold after each of some blocks of calls."""
    call = _CALLS[kind](holder, device, size)
    seen = []
    gc.collect()
    for _ in range(BLOCKS + 1):
        for _ in range(CALLS):
            call()
        holder.runtime.synchronize_stream(device)
        gc.collect(1)  # what these calls left; all of it takes a tenth of a second
        seen.append(_held(holder, device))
    return seen


def _held(holder: HeldDevice, device: int) -> dict[str, int]:
    stats = holder.runtime.memory_stats(device)
    return {
        "file descriptors": _entries("/proc/self/fd"),
        "threads": _entries("/proc/self/task"),
        "bytes of malloc": malloc_bytes() or 0,
        "Python objects": sys.getallocatedblocks(),
        "allocations of the device": stats.live_allocations,
        "bytes of the device": stats.allocated_bytes,
    }


def _entries(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:  # another system than Linux
        return 0


def _allocations(holder: HeldDevice, device: int, size: int) -> Callable[[], object]:
    return lambda: holder.runtime.allocate_memory(size, device).free()


def _copies(holder: HeldDevice, device: int, size: int) -> Callable[[], object]:
    memory, host = holder.runtime.allocate_memory(size, device), memoryview(bytearray(size))

    def call() -> None:
        holder.runtime.copy_host_to_device(memory, host)
        holder.runtime.copy_device_to_host(memory, host)

    return call


def _refusals(holder: HeldDevice, device: int, size: int) -> Callable[[], object]:
    memory, host = holder.runtime.allocate_memory(size, device), memoryview(bytearray(size))
    return lambda: looks.attempt(
        lambda: holder.runtime.copy_host_to_device(memory, host, offset=size)
    )


def _pinned(holder: HeldDevice, device: int, size: int) -> Callable[[], object]:
    def call() -> None:
        holder.runtime.allocate_pinned_memory(size).release()

    return call


def _streams(holder: HeldDevice, device: int, size: int) -> Callable[[], object]:
    runtime = holder.runtime
    memory, host = runtime.allocate_memory(size, device), memoryview(bytearray(size))

    def call() -> None:
        stream = runtime.create_stream(device)
        runtime.copy_host_to_device(memory, host, stream=stream)
        runtime.synchronize_stream(device, stream)

    return call


def _events(holder: HeldDevice, device: int, size: int) -> Callable[[], object]:
    stream: Any = holder.runtime.create_stream(device)

    def call() -> None:
        for _ in range(3):
            event = timed_event(holder, device, stream)
            event.record(stream)
            event.synchronize()

    return call


_CALLS: Final[Mapping[str, Callable[[HeldDevice, int, int], Callable[[], object]]]] = {
    "small allocations": _allocations,
    "larger allocations": _allocations,
    "copies": _copies,
    "refused copies": _refusals,
    "pinned memory": _pinned,
    "streams": _streams,
    "events": _events,
}
