"""What core asks of a device's runtime: five methods, and defaults for the rest."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch

from vllm_adapter.errors import AllocationFreed, DeviceError, OutOfBounds


class Allocation:
    """Device memory with one owner: `free()` gives it back, once.

    `storage` is a one-dimensional uint8 tensor over the bytes; reading it, or `address`, after
    `free()` raises AllocationFreed.
    """

    def __init__(self, storage: torch.Tensor, device_id: int) -> None:
        self._storage: torch.Tensor | None = storage
        self._freeing = threading.Lock()
        self.size = storage.numel()
        self.device_id = device_id

    @property
    def storage(self) -> torch.Tensor:
        """uint8[size] on the device.

        Raises:
            AllocationFreed: after `free()`.
        """
        storage = self._storage
        if storage is None:
            raise AllocationFreed(
                f"an allocation of {self.size} bytes on device {self.device_id} was used after "
                "its free()",
                hint="keep one owner for an allocation, and free it last",
            )
        return storage

    @property
    def address(self) -> int:
        """Device address of the first byte."""
        return self.storage.data_ptr()

    def tensor(
        self, shape: tuple[int, ...], dtype: torch.dtype, *, offset: int = 0
    ) -> torch.Tensor:
        """A contiguous tensor over the bytes from `offset` on; it shares the memory.

        Gives [*shape] of `dtype`; `offset` is in bytes.

        Raises:
            OutOfBounds: the tensor would leave the allocation.
        """
        count = 1
        for extent in shape:
            count *= extent
        # A tensor made in inference mode could never be written outside of it.
        with torch.inference_mode(False):
            return self.bytes_at(offset, count * dtype.itemsize).view(dtype).view(shape)

    def bytes_at(self, offset: int, length: int) -> torch.Tensor:
        """uint8[length] from `offset` on.

        Raises:
            OutOfBounds: the range leaves the allocation.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise OutOfBounds(
                f"bytes {offset} to {offset + length} leave an allocation of {self.size} bytes",
                hint="check offset and length against Allocation.size",
            )
        return self.storage[offset : offset + length]

    def free(self) -> None:
        """Gives the memory back.

        Raises:
            AllocationFreed: on the second call.
        """
        with self._freeing:
            storage, self._storage = self._storage, None
        if storage is None:
            raise AllocationFreed(
                f"an allocation of {self.size} bytes on device {self.device_id} was freed twice",
                hint="keep one owner for an allocation",
            )

    @property
    def is_live(self) -> bool:
        """Whether `free()` has not been called."""
        return self._storage is not None


@dataclass(frozen=True, slots=True)
class MemoryCapacity:
    """Bytes of one device. `unified`: it is host memory, shared with everything else.

    `pooled_bytes` are those that the runtime's own pool holds and hands out again: what was freed
    and not given back. Small allocations can have `free_bytes + pooled_bytes` together.
    """

    total_bytes: int
    free_bytes: int
    unified: bool
    pooled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """What is in use on one device.

    `allocated_bytes` is the framework's own figure where it keeps one (it then also counts
    tensors), else the sum of our live allocations; `live_allocations` counts ours. With the
    source "library" both are a C library's own figures, which count tensors.
    """

    allocated_bytes: int
    live_allocations: int
    source: str


class Stream(Protocol):
    """A queue of one device's work: a torch.Stream, or what a C library's runtime makes.

    A runtime takes those that its own `create_stream` gave, and refuses others.
    """

    def synchronize(self) -> None:
        """Waits until everything on the stream has run."""


class RuntimeAdapter(ABC):
    """One vendor's devices. Only the abstract methods have to be written.

    A method that takes `stream` runs on that stream's order and returns without waiting; with
    None it has finished when it returns. Buffers stay the caller's until the stream is done.
    """

    def __init__(self) -> None:
        self._live: weakref.WeakSet[Allocation] = weakref.WeakSet()
        self._counting = threading.Lock()

    @abstractmethod
    def get_device_count(self) -> int:
        """How many devices there are; valid ids are `range` of it."""

    @abstractmethod
    def allocate_memory(
        self, size: int, device_id: int, *, alignment: int | None = None
    ) -> Allocation:
        """`size` bytes whose address is a multiple of `alignment` (a power of two).

        Raises:
            NoSuchDevice: `device_id` is not one of ours.
            OutOfMemory: the device cannot give that much; nothing was allocated.
        """

    @abstractmethod
    def copy_host_to_device(
        self,
        destination: Allocation,
        source: memoryview,
        *,
        offset: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Copies all of `source` to `destination[offset:]`.

        Raises:
            OutOfBounds: it does not fit; nothing was copied.
            DeviceError: `source` has gaps between its elements.
        """

    @abstractmethod
    def copy_device_to_host(
        self,
        source: Allocation,
        destination: memoryview,
        *,
        offset: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Fills all of `destination` from `source[offset:]`.

        Raises:
            OutOfBounds: `source` has not so many bytes; nothing was copied.
            DeviceError: `destination` is read-only, or has gaps between its elements.
        """

    @abstractmethod
    def synchronize_stream(self, device_id: int, stream: Stream | None = None) -> None:
        """Waits until everything on the stream (None: the current one) has run."""

    def get_device_capability(self, device_id: int) -> tuple[int, int] | None:
        """(major, minor) where the vendor has one. Compare it only inside one arch family."""
        return None

    def allocate_pinned_memory(self, size: int) -> memoryview:
        """Writable host memory for asynchronous copies; plain memory by default."""
        return memoryview(bytearray(size))

    def create_stream(self, device_id: int) -> Stream | None:
        """A stream of its own, or None where the device has no streams."""
        return None

    def query_memory_capacity(self, device_id: int) -> MemoryCapacity:
        """Bytes in all and free now, as the driver or the system says; never a datasheet's.

        A runtime with a pool says what that holds, so that free and pooled bytes together fall by
        what is taken and rise by what is freed.

        Raises:
            DeviceError: this runtime cannot tell.
        """
        raise DeviceError(
            f"{type(self).__name__} cannot report the memory of device {device_id}",
            hint="the runtime has to override query_memory_capacity",
        )

    def memory_stats(self, device_id: int) -> MemoryStats:
        """What is in use.

        Raises:
            NoSuchDevice: `device_id` is not one of ours.
        """
        with self._counting:
            live = list(self._live)
        mine = [a for a in live if a.is_live and a.device_id == device_id]
        return MemoryStats(sum(a.size for a in mine), len(mine), "allocations")

    def _record(self, allocation: Allocation) -> Allocation:
        with self._counting:
            self._live.add(allocation)
        return allocation
