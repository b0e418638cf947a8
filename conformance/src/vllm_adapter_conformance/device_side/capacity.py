"""How much memory a device has: told, taken to its end, and given back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import looks

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

ASKED: Final = 5
TRIES: Final = 8
MOST_PIECES: Final = 4096
MARK: Final = 64
REFUSED: Final = (1 << 20, 1 << 16, 4096)
"""Bytes that are asked for when the device is full."""
REFUSALS: Final = 24


def capacities(holder: HeldDevice, *, device: int, times: int) -> list[dict[str, Any]]:
    """The figures, asked several times."""
    return [looks.capacity(holder, device=device) for _ in range(times)]


def capacities_asked(holder: HeldDevice, *, device: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    tried = looks.attempt(lambda: found.extend(capacities(holder, device=device, times=ASKED)))
    return tried | {"found": found}


def falls_and_rises(
    holder: HeldDevice, *, device: int, watched: int, pieces: int, size: int, rounds: int
) -> list[dict[str, int]]:
    """What free and pooled bytes of `device` fall by and rise by, and those of `watched`."""

    def available(number: int) -> int:
        found = looks.capacity(holder, device=number)
        return int(found["free"]) + int(found["pooled"])

    runtime, seen = holder.runtime, []
    for _ in range(rounds):
        before, beside = available(device), available(watched)
        held = [runtime.allocate_memory(size, device) for _ in range(pieces)]
        for memory in held:
            looks.put(holder, memory, b"\1")
        during, beside_during = available(device), available(watched)
        for memory in held:
            memory.free()
        del held, memory
        runtime.synchronize_stream(device)
        after = available(device)
        seen.append(
            {
                "fall": before - during,
                "rise": after - during,
                "beside": beside - beside_during,
            }
        )
    return seen


def told_and_true(holder: HeldDevice, *, device: int, written: int) -> list[list[int]]:
    """(free as the runtime says, free as this system says), some times while memory is written."""
    seen, held = [], []
    for _ in range(TRIES):
        seen.append([looks.capacity(holder, device=device)["free"], system_free()])
        memory = holder.runtime.allocate_memory(written // TRIES, device)
        looks.fill(holder, memory, 1)
        held.append(memory)
    for memory in held:
        memory.free()
    return seen


def system_free() -> int:
    """MemAvailable of Linux, in bytes; -1 where it cannot be read."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return -1
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else -1


def too_large(holder: HeldDevice, *, device: int, size: int | None, data: bytes) -> dict[str, Any]:
    """Asks for too much (None: one byte more than the total), then uses the device."""
    runtime = holder.runtime
    size = runtime.query_memory_capacity(device).total_bytes + 1 if size is None else size
    before = runtime.memory_stats(device)
    tried = looks.attempt(lambda: runtime.allocate_memory(size, device))
    after = runtime.memory_stats(device)
    memory = runtime.allocate_memory(len(data), device)
    looks.put(holder, memory, data)
    back = looks.get(holder, memory)
    memory.free()
    return {
        "size": size,
        "tried": tried,
        "before": [before.allocated_bytes, before.live_allocations],
        "after": [after.allocated_bytes, after.live_allocations],
        "back": back,
    }


def exhausted(holder: HeldDevice, *, device: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Allocates pieces of falling sizes until none is given, gives all back, and takes a quarter.

    Each piece is marked at both ends; what the marks read at the end is seen.
    """
    runtime = holder.runtime
    before = looks.capacity(holder, device=device)
    stats = runtime.memory_stats(device)
    held: list[Any] = []
    refused: dict[str, Any] = {}
    for size in sizes:
        while len(held) < MOST_PIECES:
            refused = looks.attempt(_take, holder, device, size, held)
            if "kinds" in refused:
                break
        if "OutOfMemory" not in refused.get("kinds", ()):
            break
    for size in REFUSED * REFUSALS:  # a server that is full asks again and again
        if len(held) < MOST_PIECES:
            looks.attempt(_take, holder, device, size, held)
    full = looks.capacity(holder, device=device)
    wrong = [
        number
        for number, memory in enumerate(held)
        for at in (0, memory.size - MARK)
        if looks.get(holder, memory, MARK, at) != number.to_bytes(MARK, "little")
    ]
    taken, count = sum(memory.size for memory in held), len(held)
    while held:
        held.pop().free()
    after = runtime.memory_stats(device)
    part = max(MARK, (before["free"] + before["pooled"]) // 4)
    again = looks.attempt(lambda: _marked(holder, device, part))
    empty_cache(holder)
    return {
        "before": before,
        "full": full,
        "taken": taken,
        "count": count,
        "refused": refused,
        "wrong": wrong,
        "stats": [[figure.allocated_bytes, figure.live_allocations] for figure in (stats, after)],
        "part": part,
        "again": again,
        "after": looks.capacity(holder, device=device),
    }


def _take(holder: HeldDevice, device: int, size: int, held: list[Any]) -> None:
    """Allocates one piece more, and marks both its ends with its number."""
    memory, mark = holder.runtime.allocate_memory(size, device), len(held).to_bytes(MARK, "little")
    held.append(memory)
    looks.put(holder, memory, mark)
    looks.put(holder, memory, mark, size - MARK)


def _marked(holder: HeldDevice, device: int, size: int) -> bool:
    """Whether a piece of memory holds a mark at its end; it is given back."""
    memory = holder.runtime.allocate_memory(size, device)
    try:
        looks.put(holder, memory, b"\7" * MARK, size - MARK)
        return looks.get(holder, memory, MARK, size - MARK) == b"\7" * MARK
    finally:
        memory.free()


def empty_cache(holder: HeldDevice) -> None:
    """Gives torch's own pool back, where it has one: other processes need the memory, too."""
    import torch

    empty = getattr(getattr(torch, holder.device.type, None), "empty_cache", None)
    if empty is not None:
        empty()
