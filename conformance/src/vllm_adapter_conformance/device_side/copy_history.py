"""Copies after copies: at once, in turn, on streams and from threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from . import looks

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

_KEPT: Final[list[object]] = []
"""Buffers that a device may still write into, since its wait did not wait."""


def detached(holder: HeldDevice, *, device: int, first: bytes, second: bytes) -> dict[str, bytes]:
    """What both sides hold when the other one is overwritten as soon as a copy has returned."""
    runtime, host = holder.runtime, bytearray(first)
    memory = runtime.allocate_memory(len(first), device)
    runtime.copy_host_to_device(memory, memoryview(host))
    host[:] = second
    kept = looks.get(holder, memory)
    put = bytearray(first)
    looks.put(holder, memory, bytes(put))
    back = bytearray([looks.HOST_POISON]) * len(first)
    runtime.copy_device_to_host(memory, memoryview(back))
    at_once = bytes(back)
    looks.put(holder, memory, second)
    later = bytes(back)
    if at_once != later:
        _KEPT.append(back)
    memory.free()
    return {"device": kept, "at once": at_once, "later": later}


def in_turn(holder: HeldDevice, *, device: int, contents: Sequence[bytes]) -> list[bytes]:
    """What one piece of memory, and one buffer of the host, hold after each of several copies."""
    runtime, size = holder.runtime, len(contents[0])
    memory, back = runtime.allocate_memory(size, device), bytearray(size)
    try:
        seen = []
        for data in contents:
            looks.put(holder, memory, data)
            runtime.copy_device_to_host(memory, memoryview(back))
            runtime.synchronize_stream(device)
            seen.append(bytes(back))
        return seen
    finally:
        memory.free()


def many(
    holder: HeldDevice, *, device: int, pieces: Sequence[tuple[int, bytes]]
) -> dict[str, Any]:
    """Writes many pieces by a copy each, and reads them back by a copy each."""
    runtime = holder.runtime
    size = max(at + len(data) for at, data in pieces)
    memory = runtime.allocate_memory(size, device)
    try:
        looks.fill(holder, memory)
        for at, data in pieces:
            runtime.copy_host_to_device(memory, memoryview(bytearray(data)), offset=at)
        whole = looks.get(holder, memory)
        back = bytearray([looks.HOST_POISON]) * size
        for at, data in pieces:
            view = memoryview(back)[at : at + len(data)]
            runtime.copy_device_to_host(memory, view, offset=at)
        runtime.synchronize_stream(device)
        return {"memory": whole, "back": bytes(back)}
    finally:
        memory.free()


def on_stream(
    holder: HeldDevice, *, device: int, own: bool, contents: Sequence[bytes]
) -> dict[str, Any]:
    """One place written and read in turns on a stream, with one wait at the end."""
    runtime, size = holder.runtime, len(contents[0])
    stream = runtime.create_stream(device) if own else None
    sources, targets = [], []
    for data in contents:
        source, target = (runtime.allocate_pinned_memory(size).cast("B") for _ in range(2))
        source[:], target[:] = data, bytes(size)
        sources.append(source)
        targets.append(target)
    memory = runtime.allocate_memory(size, device)
    for source, target in zip(sources, targets, strict=True):
        runtime.copy_host_to_device(memory, source, stream=stream)
        runtime.copy_device_to_host(memory, target, stream=stream)
    runtime.synchronize_stream(device, stream)
    seen = [bytes(target) for target in targets]
    if seen != list(contents):
        _KEPT.append((memory, sources, targets))
    else:
        memory.free()
    return {"stream": None if stream is None else str(stream), "seen": seen}


def at_a_time(
    holder: HeldDevice, *, device: int, turns: Sequence[Sequence[tuple[int, bytes]]]
) -> list[list[bytes]]:
    """Each thread allocates, writes at an offset, reads all and frees, some times.

    Seen is what each has read, by thread and turn.
    """
    errors: list[BaseException] = []
    start = threading.Barrier(len(turns))
    seen: list[list[bytes]] = [[] for _ in turns]

    def work(number: int) -> None:
        try:
            start.wait()
            for offset, data in turns[number]:
                memory = holder.runtime.allocate_memory(offset + len(data), device)
                looks.put(holder, memory, data, offset)
                seen[number].append(looks.get(holder, memory, len(data), offset))
                memory.free()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(turns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return seen
