"""Events that are asked, waited for and timed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from . import looks
from .torch_streams import StreamWork, emptied, pinned, timed_event

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

LONG: Final = 4
"""Copies that take so long that a mark behind them is not reached at once."""
TRIES: Final = 6
"""A busy machine may keep this process away until the work is done: then it is tried again."""
POLL_S: Final = 5.0
PAUSES_S: Final = (0.04, 0.04, 0.04, 1.1)
"""The last is more than a second, which a clock may count in another place."""
TIMED: Final = 4 << 20
TIMES: Final = (1, 12)
"""Copies between two marks, few and many."""


def asked(holder: HeldDevice, *, device: int, data: bytes, again: bool) -> list[dict[str, Any]]:
    """What an event behind long work and a copy to the host says, and what the host holds then.

    It is asked at once, after a wait, and then another one in a loop. With `again` the event was
    reached before and is set anew.
    """
    runtime, size, seen = holder.runtime, len(data), []
    stream: Any = runtime.create_stream(device)
    work, memory = StreamWork(holder, device), runtime.allocate_memory(size, device)
    looks.put(holder, memory, data)
    for _ in range(TRIES):
        event, other = (timed_event(holder, device, stream) for _ in range(2))
        back = emptied(holder, size)
        if again:
            event.record(stream)
            event.synchronize()
        work.queue(stream, LONG)
        runtime.copy_device_to_host(memory, back, stream=stream)
        event.record(stream)
        at_once = bool(event.query())
        held = bytes(back)
        event.synchronize()
        after = bool(event.query())
        work.queue(stream, 1)
        other.record(stream)
        until = time.monotonic() + POLL_S
        while not (polled := bool(other.query())) and time.monotonic() < until:
            time.sleep(0.0005)
        runtime.synchronize_stream(device, stream)
        seen.append({"at once": at_once, "held": held, "after": after, "polled": polled})
    memory.free()
    work.free()
    return seen


def synchronized(holder: HeldDevice, *, device: int, data: bytes, again: bool) -> list[bytes]:
    """What the host holds right after the wait for an event behind a copy to it, some times."""
    runtime, size, seen = holder.runtime, len(data), []
    stream: Any = runtime.create_stream(device)
    work, memory = StreamWork(holder, device), runtime.allocate_memory(size, device)
    looks.put(holder, memory, data)
    event = timed_event(holder, device, stream)
    if again:
        event.record(stream)
        event.synchronize()
    for _ in range(2):
        back = emptied(holder, size)
        work.queue(stream, LONG)
        runtime.copy_device_to_host(memory, back, stream=stream)
        event.record(stream)
        event.synchronize()
        seen.append(bytes(back))
        runtime.synchronize_stream(device, stream)
    memory.free()
    work.free()
    return seen


def ordered(holder: HeldDevice, *, device: int, data: bytes) -> bytes:
    """What a second stream copies back when it waits for an event's second record on the first."""
    runtime, size = holder.runtime, len(data)
    first: Any = runtime.create_stream(device)
    second: Any = runtime.create_stream(device)
    work, memory = StreamWork(holder, device), runtime.allocate_memory(size, device)
    looks.fill(holder, memory)
    host, back = pinned(holder, data), emptied(holder, size)
    event = timed_event(holder, device, first)
    event.record(first)
    event.synchronize()
    work.queue(first, LONG)
    runtime.copy_host_to_device(memory, host, stream=first)
    event.record(first)
    second.wait_event(event)
    runtime.copy_device_to_host(memory, back, stream=second)
    runtime.synchronize_stream(device, second)
    seen = bytes(back)
    runtime.synchronize_stream(device, first)
    memory.free()
    work.free()
    return seen


def timed(holder: HeldDevice, *, device: int) -> dict[str, list[float]]:
    """Milliseconds between marks around nothing, little and much work, and by the host's clock."""
    stream: Any = holder.runtime.create_stream(device)
    work = StreamWork(holder, device, TIMED)
    seen: dict[str, list[float]] = {name: [] for name in ("few", "many", "host", "empty", "again")}
    for _ in range(TRIES):
        for times, found in zip(TIMES, ("few", "many"), strict=True):
            start, end = (timed_event(holder, device, stream) for _ in range(2))
            holder.runtime.synchronize_stream(device, stream)
            began = time.perf_counter()
            start.record(stream)
            work.queue(stream, times)
            end.record(stream)
            end.synchronize()
            seen[found].append(float(start.elapsed_time(end)))
        seen["host"].append((time.perf_counter() - began) * 1e3)
        start.record(stream)
        end.record(stream)
        end.synchronize()
        seen["empty"].append(float(start.elapsed_time(end)))
    first, later = (timed_event(holder, device, stream) for _ in range(2))
    for event in (first, later):
        event.record(stream)
        event.synchronize()
    for pause in PAUSES_S:
        time.sleep(pause)
        later.record(stream)
        later.synchronize()
        seen["again"].append(float(first.elapsed_time(later)))
    work.free()
    return seen
