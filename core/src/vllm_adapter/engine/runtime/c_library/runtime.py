"""The runtime of a chip that has a C library only."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any, Final

import numpy
import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library, LibraryDevice
from vllm_adapter.engine.runtime.base import (
    Allocation,
    MemoryCapacity,
    MemoryStats,
    RuntimeAdapter,
    Stream,
)
from vllm_adapter.engine.runtime.c_library.dlpack import device_bytes
from vllm_adapter.engine.runtime.c_library.streams import (
    LOG,
    CLibraryEvent,
    CLibraryStream,
    CurrentStreams,
)
from vllm_adapter.engine.runtime.host_buffer import check_readable, check_writable
from vllm_adapter.errors import DeviceError, OutOfBounds, VllmAdapterError

_LARGEST: Final = 2**62


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The library's own figures of one device's memory, in bytes, since the process began.

    `link_bytes` were copied from this device to another one.
    """

    allocated_bytes: int
    peak_bytes: int
    live_allocations: int
    link_bytes: int


class CLibraryRuntime(RuntimeAdapter):
    """The devices of one C library, under the torch device type `torch_type`.

    Every method may be called from any thread. A device is opened by the first method that needs
    it; a child that is forked after that gets ForkedDevice from each of them. Memory becomes a
    tensor, for which torch has to know the device: `device_from_clib` sees to that.

    `streams` are the threads' current streams, those of the torch device where there is one.
    """

    def __init__(
        self, library: Library, torch_type: str, streams: CurrentStreams | None = None
    ) -> None:
        super().__init__()
        self.library = library
        self.torch_type = torch_type
        self.streams = CurrentStreams(library) if streams is None else streams

    def get_device_count(self) -> int:
        return self.library.device_count()

    def device(self, device_id: int) -> torch.device:
        """The torch device of an id.

        Raises:
            NoSuchDevice: the id is not one of ours.
        """
        self.library.check_device(device_id)
        return torch.device(self.torch_type, device_id)

    def device_info(self, device_id: int) -> LibraryDevice:
        """What the library says of a device."""
        return self.library.device_info(device_id)

    def allocate_memory(
        self, size: int, device_id: int, *, alignment: int | None = None
    ) -> Allocation:
        """As the base says; `alignment` may also be a multiple of the device's own."""
        if size < 0 or (alignment is not None and not 1 <= alignment < _LARGEST):
            raise DeviceError(
                f"cannot allocate {size} bytes aligned to {alignment}",
                hint="size must not be negative; alignment must be a power of two",
            )
        self.library.open(device_id)
        # A tensor made in inference mode could never be written outside of it.
        with torch.inference_mode(False):
            storage = device_bytes(self.library, size, device_id, alignment=alignment or 0)
        return self._record(Allocation(storage, device_id))

    def copy_host_to_device(
        self,
        destination: Allocation,
        source: memoryview,
        *,
        offset: int = 0,
        stream: Stream | None = None,
    ) -> None:
        to = _address(destination, offset, source.nbytes)
        check_readable(source)
        if not source.nbytes:
            return
        queue = self._queue(destination.device_id, stream)
        host = numpy.frombuffer(source, dtype=numpy.uint8)
        self.library.call(
            "copy_to_device", queue.device_id, queue.handle, to, _pointer(host), host.nbytes
        )
        if stream is None:
            queue.synchronize()
        else:
            queue.hold(host)

    def copy_device_to_host(
        self,
        source: Allocation,
        destination: memoryview,
        *,
        offset: int = 0,
        stream: Stream | None = None,
    ) -> None:
        origin = _address(source, offset, destination.nbytes)
        check_writable(destination)
        if not destination.nbytes:
            return
        queue = self._queue(source.device_id, stream)
        host = numpy.frombuffer(destination, dtype=numpy.uint8)
        self.library.call(
            "copy_to_host", queue.device_id, queue.handle, _pointer(host), origin, host.nbytes
        )
        if stream is None:
            queue.synchronize()
        else:
            queue.hold(host)

    def copy_on_device(
        self,
        destination: Allocation,
        source: Allocation,
        size: int,
        *,
        destination_offset: int = 0,
        source_offset: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """Copies `size` bytes between allocations, which may lie on two devices.

        It is ordered on a stream of the destination's device.

        Raises:
            OutOfBounds: a range leaves its allocation; nothing was copied.
        """
        to = _address(destination, destination_offset, size)
        origin = _address(source, source_offset, size)
        if not size:
            return
        queue = self._queue(destination.device_id, stream)
        self.library.call(
            "copy_on_device",
            queue.handle,
            destination.device_id,
            to,
            source.device_id,
            origin,
            size,
        )
        if stream is None:
            queue.synchronize()

    def synchronize_stream(self, device_id: int, stream: Stream | None = None) -> None:
        self._queue(device_id, stream).synchronize()

    def get_device_capability(self, device_id: int) -> tuple[int, int] | None:
        return self.library.device_info(device_id).capability

    def allocate_pinned_memory(self, size: int) -> memoryview:
        """Host memory of the library's, freed with its last view; plain where it has none."""
        if not self.library.has("allocate_pinned") or not size:
            return super().allocate_pinned_memory(size)
        if not 0 < size < _LARGEST:
            raise DeviceError(f"cannot pin {size} bytes", hint="check the size")
        address = ctypes.c_void_p()
        self.library.call("allocate_pinned", size, 0, ctypes.byref(address))
        if not address.value:
            raise DeviceError(
                f"{self.library.path.name}: allocate_pinned says OK and gives no memory",
                hint="report it to the library's vendor",
            )
        block = (ctypes.c_uint8 * size).from_address(address.value)
        # Not at exit: the library may be half torn down by then, and the system frees all.
        weakref.finalize(block, _free_pinned, self.library, address.value).atexit = False
        return memoryview(block).cast("B")

    def create_stream(self, device_id: int) -> CLibraryStream:
        return self.streams.new(device_id)

    def create_event(self, device_id: int) -> CLibraryEvent:
        """An event of a device, not recorded yet."""
        return CLibraryEvent(self.library, device_id)

    def fence(self, device_id: int, scope: str, *, stream: Stream | None = None) -> None:
        """What was queued on the stream is seen by all of `scope` before what comes after.

        `scope` is one of `abi.FENCES`.
        """
        if scope not in abi.FENCES:
            raise DeviceError(
                f"there is no fence scope {scope!r}", hint=f"scopes: {', '.join(abi.FENCES)}"
            )
        queue = self._queue(device_id, stream)
        self.library.call("fence", device_id, queue.handle, abi.FENCES.index(scope))

    def query_memory_capacity(self, device_id: int) -> MemoryCapacity:
        self.library.open(device_id)
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        self.library.call("memory_info", device_id, ctypes.byref(free), ctypes.byref(total))
        unified = self.library.device_info(device_id).unified
        return MemoryCapacity(total.value, free.value, unified)

    def memory_stats(self, device_id: int) -> MemoryStats:
        """The library's figures: they count tensors, too."""
        seen = self.device_memory(device_id)
        return MemoryStats(seen.allocated_bytes, seen.live_allocations, "library")

    def device_memory(self, device_id: int) -> DeviceMemory:
        """All figures that the library keeps of a device's memory."""
        self.library.open(device_id)
        raw = abi.VaMemoryStats(size=ctypes.sizeof(abi.VaMemoryStats))
        self.library.call("memory_stats", device_id, ctypes.byref(raw))
        return DeviceMemory(
            raw.allocated_bytes, raw.peak_bytes, raw.live_allocations, raw.link_bytes
        )

    def _queue(self, device_id: int, stream: Stream | None) -> CLibraryStream:
        self.library.open(device_id)
        if stream is None:
            return self.streams.get(device_id)
        if not isinstance(stream, CLibraryStream) or stream.library is not self.library:
            raise DeviceError(
                f"{stream!r} is no stream of {self.library.path.name}",
                hint="make it with create_stream of this runtime",
            )
        if stream.device_id != device_id:
            raise DeviceError(
                f"{stream!r} cannot take work of device {device_id}",
                hint="make the stream on the device whose memory is used",
            )
        return stream


def _address(allocation: Allocation, offset: int, length: int) -> int:
    """The device address of a range. Slicing the tensor instead would cost an aten operator."""
    address = allocation.address  # first: it tells a freed one
    if offset < 0 or length < 0 or offset + length > allocation.size:
        raise OutOfBounds(
            f"bytes {offset} to {offset + length} leave an allocation of {allocation.size} bytes",
            hint="check offset and length against Allocation.size",
        )
    return address + offset


def _pointer(host: Any) -> int:
    address: int = host.__array_interface__["data"][0]
    return address


def _free_pinned(library: Library, address: int) -> None:
    if library.is_forked:
        return
    try:
        library.call("free_pinned", address)
    except VllmAdapterError as error:  # nobody is left to raise it to
        LOG.warning("%s", error)
