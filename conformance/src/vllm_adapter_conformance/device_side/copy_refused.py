"""Copies that have to be refused, and those of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import looks

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice


def read_only(holder: HeldDevice, *, device: int, data: bytes) -> dict[str, Any]:
    """Copies from read-only bytes, and tries to copy into such."""
    runtime, constant = holder.runtime, bytes(len(data))
    memory = runtime.allocate_memory(len(data), device)
    try:
        looks.fill(holder, memory)
        runtime.copy_host_to_device(memory, memoryview(data))
        runtime.synchronize_stream(device)
        return {
            "memory": looks.get(holder, memory),
            "into": looks.attempt(
                lambda: runtime.copy_device_to_host(memory, memoryview(constant))
            ),
            "constant": bytes(bytearray(constant)),
        }
    finally:
        memory.free()


def beyond(
    holder: HeldDevice, *, device: int, size: int, offset: int, length: int
) -> dict[str, Any]:
    """Tries copies that leave their memory, and then a right one."""
    runtime, host = holder.runtime, bytearray(length)
    memory = runtime.allocate_memory(size, device)
    try:
        looks.fill(holder, memory)
        seen: dict[str, Any] = {}
        view = memoryview(host)
        seen["to"] = looks.attempt(
            lambda: runtime.copy_host_to_device(memory, view, offset=offset)
        )
        seen["back"] = looks.attempt(
            lambda: runtime.copy_device_to_host(memory, view, offset=offset)
        )
        runtime.synchronize_stream(device)
        return {**seen, "memory": looks.get(holder, memory), "host": bytes(host)}
    finally:
        memory.free()


def of_nothing(holder: HeldDevice, *, device: int) -> bytes:
    """The memory after copies of nothing to and from the start, the end, and an empty one."""
    runtime, nothing = holder.runtime, memoryview(bytearray())
    memory, empty = runtime.allocate_memory(64, device), runtime.allocate_memory(0, device)
    try:
        looks.fill(holder, memory)
        for place, offset in ((memory, 0), (memory, 64), (empty, 0)):
            runtime.copy_host_to_device(place, nothing, offset=offset)
            runtime.copy_device_to_host(place, nothing, offset=offset)
        return looks.get(holder, memory)
    finally:
        memory.free()
        empty.free()
