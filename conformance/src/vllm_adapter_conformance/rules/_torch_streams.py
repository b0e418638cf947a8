"""Streams and events of a device as torch has them, for the device's part of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_adapter_conformance.rules._drawn import MIB
from vllm_adapter_conformance.rules._looks import HOST_POISON

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.bench import Bench
    from vllm_adapter_conformance.base.target import Target

BULK: Final = 16 * MIB
"""Bytes of a copy that takes a while."""


def has_streams(target: Target) -> bool:
    """Whether the device has streams at all; one that the CPU stands in for has none."""
    if target.device is not None:
        return target.device.torch.partition(":")[0] != "cpu"
    capability = target.capability
    return capability is None or capability.identity.torch_type != "cpu"


def timed_event(bench: Bench, device: int, stream: Any) -> Any:
    """An event of the device that can be timed, not recorded yet.

    `stream`, which create_stream gave, takes events of torch's own class, or of its module's.
    """
    import torch

    kind = bench.device.type
    if type(stream) is torch.Stream:
        return torch.Event(f"{kind}:{device}", enable_timing=True)
    return getattr(torch, kind).Event(enable_timing=True)


def pinned(bench: Bench, data: bytes) -> memoryview:
    """Pinned host memory that holds bytes."""
    view = bench.runtime.allocate_pinned_memory(len(data)).cast("B")
    view[:] = data
    return view


def emptied(bench: Bench, size: int) -> memoryview:
    """Pinned host memory full of HOST_POISON."""
    return pinned(bench, bytes([HOST_POISON]) * size)


class Work:
    """Long copies to one device that can be queued on its streams, again and again."""

    def __init__(self, bench: Bench, device: int, size: int = BULK) -> None:
        self._runtime = bench.runtime
        self._memory = bench.runtime.allocate_memory(size, device)
        self._host = pinned(bench, bytes(size))

    def queue(self, stream: Any, times: int) -> None:
        """Queues that many copies on a stream, and does not wait."""
        for _ in range(times):
            self._runtime.copy_host_to_device(self._memory, self._host, stream=stream)

    def free(self) -> None:
        """Gives the memory back; the streams must have been waited for."""
        self._memory.free()
