"""Copies on a device and between devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import looks

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice


def moved(
    holder: HeldDevice, *, source: int, target: int, data: bytes, from_offset: int, to_offset: int
) -> dict[str, bytes]:
    """Copies part of one device's memory into another's, or the same one's, by torch."""
    runtime, size = holder.runtime, len(data)
    held = runtime.allocate_memory(from_offset + size + looks.GUARD, source)
    given = runtime.allocate_memory(to_offset + size + looks.GUARD, target)
    try:
        looks.fill(holder, held)
        looks.put(holder, held, data, from_offset)
        looks.fill(holder, given)
        given.bytes_at(to_offset, size).copy_(held.bytes_at(from_offset, size))
        runtime.synchronize_stream(target)
        return {"target": looks.get(holder, given), "source": looks.get(holder, held)}
    finally:
        held.free()
        given.free()
