"""Streams and events of a device as torch has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .looks import HOST_POISON, MIB

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

BULK: Final = 16 * MIB
"""Bytes of a copy that takes a while."""


def timed_event(holder: HeldDevice, device: int, stream: Any) -> Any:
    """An event of the device that can be timed, not recorded yet.

    `stream`, which create_stream gave, takes events of torch's own class, or of its module's.
    """
    import torch

    kind = holder.device.type
    if type(stream) is torch.Stream:
        return torch.Event(f"{kind}:{device}", enable_timing=True)
    return getattr(torch, kind).Event(enable_timing=True)


def pinned(holder: HeldDevice, data: bytes) -> memoryview:
    """Pinned host memory that holds bytes."""
    view = holder.runtime.allocate_pinned_memory(len(data)).cast("B")
    view[:] = data
    return view


def emptied(holder: HeldDevice, size: int) -> memoryview:
    """Pinned host memory full of HOST_POISON."""
    return pinned(holder, bytes([HOST_POISON]) * size)


class StreamWork:
    """Long copies to one device that can be queued on its streams, again and again."""

    def __init__(self, holder: HeldDevice, device: int, size: int = BULK) -> None:
        self._runtime = holder.runtime
        self._memory = holder.runtime.allocate_memory(size, device)
        self._host = pinned(holder, bytes(size))

    def queue(self, stream: Any, times: int) -> None:
        """Queues that many copies on a stream, and does not wait."""
        for _ in range(times):
            self._runtime.copy_host_to_device(self._memory, self._host, stream=stream)

    def free(self) -> None:
        """Gives the memory back; the streams must have been waited for."""
        self._memory.free()
