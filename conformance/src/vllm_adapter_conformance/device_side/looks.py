"""What looks at a runtime have in common: how a call ended, and bytes there and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.discovery.adapter import one_line

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.runtime import Allocation

MIB: Final = 1 << 20
DEVICE_POISON: Final = 0xA5
HOST_POISON: Final = 0x5A
GUARD: Final = 67
"""Bytes of the host's buffer behind a copy's own."""


def attempt(action: Callable[..., object], *arguments: object) -> dict[str, Any]:
    """How a call ended: the names of its error's classes and its sentence, or what it gave."""
    try:
        given = action(*arguments)
    except Exception as error:
        return {
            "kinds": [kind.__name__ for kind in type(error).__mro__],
            "said": one_line(error),
        }
    return {"gave": repr(given)}


def put(holder: HeldDevice, memory: Allocation, data: bytes, offset: int = 0) -> None:
    """Copies bytes to the device, from a buffer that may be written, and waits."""
    holder.runtime.copy_host_to_device(memory, memoryview(bytearray(data)), offset=offset)
    holder.runtime.synchronize_stream(memory.device_id)


def fill(holder: HeldDevice, memory: Allocation, value: int = DEVICE_POISON) -> None:
    """Fills device memory with one byte."""
    host = memoryview(bytearray([value]) * memory.size)
    holder.runtime.copy_host_to_device(memory, host)
    holder.runtime.synchronize_stream(memory.device_id)


def get(holder: HeldDevice, memory: Allocation, size: int | None = None, offset: int = 0) -> bytes:
    """Copies bytes from the device into a buffer full of HOST_POISON, and waits."""
    host = bytearray([HOST_POISON]) * (memory.size - offset if size is None else size)
    holder.runtime.copy_device_to_host(memory, memoryview(host), offset=offset)
    holder.runtime.synchronize_stream(memory.device_id)
    return bytes(host)


def capacity(holder: HeldDevice, *, device: int) -> dict[str, Any]:
    """The runtime's figures of a device's memory."""
    found = holder.runtime.query_memory_capacity(device)
    return {
        "total": found.total_bytes,
        "free": found.free_bytes,
        "pooled": getattr(found, "pooled_bytes", 0),
        "unified": found.unified,
    }


def trips(
    holder: HeldDevice, *, device: int, trips: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Bytes that go to the device and come back, each in memory of its own."""
    return [trip(holder, device=device, **given) for given in trips]


def trip(
    holder: HeldDevice,
    *,
    device: int,
    data: bytes,
    offset: int = 0,
    beside: int = 0,
    host_offset: int = 0,
    format: Any = "B",
    whole: bool = True,
) -> dict[str, Any]:
    """Copies `data` to `offset` of poisoned memory and back, `host_offset` into host buffers.

    `beside` bytes of the memory lie behind it. `format` is that of the memoryview. Seen are the
    device's memory, the host's buffer with its guards, and whether the source is as it was.
    """
    runtime, size = holder.runtime, len(data)
    memory = runtime.allocate_memory(offset + size + beside, device)
    try:
        fill(holder, memory)
        source = bytearray(host_offset) + data + bytes(GUARD)
        view = memoryview(source)[host_offset : host_offset + size].cast(format)
        runtime.copy_host_to_device(memory, view, offset=offset)
        runtime.synchronize_stream(device)
        back = bytearray([HOST_POISON]) * (host_offset + size + GUARD)
        target = memoryview(back)[host_offset : host_offset + size].cast(format)
        runtime.copy_device_to_host(memory, target, offset=offset)
        runtime.synchronize_stream(device)
        return {
            "back": bytes(back),
            "memory": get(holder, memory) if whole else None,
            "kept": source.startswith(data, host_offset),
        }
    finally:
        memory.free()
