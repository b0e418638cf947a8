"""StreamWork in the order of streams, and waits for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from . import looks
from .torch_streams import BULK, StreamWork, emptied, pinned

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

ROUNDS: Final = 4
"""Copies of BULK take so long that what is done out of order is done before their end."""
_KEPT: Final[list[object]] = []
"""Buffers that a device may still write into, since its wait did not wait."""


def in_order(
    holder: HeldDevice, *, device: int, how: str, data: bytes, later: bytes
) -> dict[str, Any]:
    """Long work first, then a small copy, and one more that sees the one before."""
    runtime, size = holder.runtime, len(data)
    back, host, next_ = emptied(holder, size), pinned(holder, data), pinned(holder, later)
    work, memory = StreamWork(holder, device), runtime.allocate_memory(size, device)
    if how == "on the device, then back":
        looks.fill(holder, memory)
        source, other = (runtime.allocate_memory(n, device) for n in (size, BULK))
        long = runtime.allocate_memory(BULK, device)
        looks.put(holder, source, data)
        for _ in range(ROUNDS):  # the current stream's work, and nobody waits
            long.storage.copy_(other.storage)
        memory.storage.copy_(source.storage)
        runtime.copy_device_to_host(memory, back)
        for spent in (source, other, long):
            spent.free()
    else:
        looks.put(holder, memory, later if how == "in, then back" else data)
        stream = runtime.create_stream(device)
        work.queue(stream, ROUNDS)
        if how == "in, then back":
            runtime.copy_host_to_device(memory, host, stream=stream)
            runtime.copy_device_to_host(memory, back, stream=stream)
        else:
            runtime.copy_device_to_host(memory, back, stream=stream)
            runtime.copy_host_to_device(memory, next_, stream=stream)
        runtime.synchronize_stream(device, stream)
    seen = {"back": bytes(back), "memory": looks.get(holder, memory)}
    memory.free()
    work.free()
    return seen


def waited_for(holder: HeldDevice, *, device: int, pieces: list[bytes]) -> bytes:
    """Copies pieces in and back on a stream, waits once, and looks at once."""
    runtime = holder.runtime
    stream = runtime.create_stream(device)
    size = sum(map(len, pieces))
    memory, back = runtime.allocate_memory(size, device), emptied(holder, size)
    hosts, at, work = [pinned(holder, data) for data in pieces], 0, StreamWork(holder, device)
    work.queue(stream, ROUNDS)  # so that all the others are still queued when it is waited for
    for number, host in enumerate(hosts, 1):
        if 1 < number == len(hosts):
            work.queue(stream, ROUNDS)  # a wait for so many of them ends long before the last
        runtime.copy_host_to_device(memory, host, offset=at, stream=stream)
        view = back[at : at + len(host)]
        runtime.copy_device_to_host(memory, view, offset=at, stream=stream)
        at += len(host)
    runtime.synchronize_stream(device, stream)
    seen = bytes(back)
    if seen == b"".join(pieces):
        memory.free()
        work.free()
    else:
        _KEPT.append((hosts, back, memory, stream, work))
    return seen


def across(holder: HeldDevice, *, device: int, data: bytes) -> dict[str, Any]:
    """Long work and a small copy in on one stream; another waits for it, and copies back."""
    runtime, size = holder.runtime, len(data)
    host, back = pinned(holder, data), emptied(holder, size)
    work, memory = StreamWork(holder, device), runtime.allocate_memory(size, device)
    looks.fill(holder, memory)
    first: Any = runtime.create_stream(device)
    second: Any = runtime.create_stream(device)
    work.queue(first, ROUNDS)
    runtime.copy_host_to_device(memory, host, stream=first)
    second.wait_stream(first)
    runtime.copy_device_to_host(memory, back, stream=second)
    runtime.synchronize_stream(device, second)
    seen = bytes(back)
    runtime.synchronize_stream(device, first)
    memory.free()
    work.free()
    return {"back": seen, "streams": f"{second} waited for {first}"}


def of_device(holder: HeldDevice, *, device: int, other: int) -> dict[str, Any]:
    """What a stream of a device says of itself, and how uses of streams of others ended."""
    runtime = holder.runtime
    stream: Any = runtime.create_stream(device)
    found = getattr(stream, "device", None)
    seen = {
        "given": stream is not None,
        "index": getattr(found, "index", getattr(stream, "device_id", None)),
        "no device": looks.attempt(lambda: runtime.create_stream(runtime.get_device_count())),
    }
    memory, host = runtime.allocate_memory(64, device), memoryview(bytearray(64))
    foreign: dict[str, Any] = {"nobody's": object()}
    if other != device:
        foreign[f"device {other}'s"] = runtime.create_stream(other)
    for name, given in foreign.items():
        seen[name] = [
            looks.attempt(partial(copy, memory, host, stream=given))
            for copy in (runtime.copy_host_to_device, runtime.copy_device_to_host)
        ]
    runtime.synchronize_stream(device)
    memory.free()
    return seen
