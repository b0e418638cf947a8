"""Runtimes over the simulated accelerator that mix up devices, streams and their arguments."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_adapter import Allocation, MemoryCapacity
from vllm_adapter.discovery.probe.library import open_library
from vllm_adapter.engine.runtime.c_library import CLibraryRuntime
from vllm_adapter.engine.runtime.device_from_clib import enable
from vllm_adapter_wrong.zoo import wrong


class OnLibrary(CLibraryRuntime):
    """The simulated accelerator's devices, as core opens them."""

    on_library = True

    def __init__(self, name):
        library = open_library(Path(os.environ["VA_LIBRARY"]))
        super().__init__(library, name, enable(name, library).streams)


@wrong
class right_on_library(OnLibrary):
    """No fault: what the others are made of."""


@wrong
class allocates_on_the_first(OnLibrary):
    """Memory of device 1 lies on device 0, and is called device 1's."""

    def allocate_memory(self, size, device_id, *, alignment=None):
        self.device(device_id)
        memory = super().allocate_memory(size, 0, alignment=alignment)
        return memory if not device_id else self._record(Moved(memory.storage, device_id))

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        stream = None if destination.device_id else stream
        super().copy_host_to_device(first(destination), source, offset=offset, stream=stream)

    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        stream = None if source.device_id else stream
        super().copy_device_to_host(first(source), destination, offset=offset, stream=stream)


class Moved(Allocation):
    pass


def first(memory):
    """The same bytes as an allocation of device 0."""
    if not memory.device_id:
        return memory
    return Allocation(memory.storage, 0)


@wrong
class waits_for_the_first(OnLibrary):
    """A wait for device 1 waits for device 0."""

    def synchronize_stream(self, device_id, stream=None):
        self.device(device_id)
        super().synchronize_stream(0 if stream is None else device_id, stream)


@wrong
class memory_of_the_first(OnLibrary):
    """All devices have the figures of device 0."""

    def query_memory_capacity(self, device_id):
        self.device(device_id)
        return super().query_memory_capacity(0)


@wrong
class memory_of_all(OnLibrary):
    """A device's figures are the sum over all."""

    def query_memory_capacity(self, device_id):
        found = [super(memory_of_all, self).query_memory_capacity(i) for i in range(2)]
        self.device(device_id)
        return MemoryCapacity(
            sum(f.total_bytes for f in found), sum(f.free_bytes for f in found), unified=False
        )


@wrong
class stream_of_the_first(OnLibrary):
    """A stream is made on device 0 whatever is asked for."""

    def create_stream(self, device_id):
        self.device(device_id)
        return super().create_stream(0)


@wrong
class no_own_stream(OnLibrary):
    """`create_stream` says that the device has none."""

    def create_stream(self, device_id):
        self.device(device_id)
        return None


@wrong
class stream_is_ignored(OnLibrary):
    """Copies to the device go to the default stream, and return at once."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        if stream is not None:
            stream = self.streams.default(destination.device_id)
        super().copy_host_to_device(destination, source, offset=offset, stream=stream)


@wrong
class forgets_the_wait(OnLibrary):
    """Copies to the device without a stream do not wait, above 256 KiB."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        if stream is None and source.nbytes > 1 << 18:
            stream = self.streams.get(destination.device_id)
        super().copy_host_to_device(destination, source, offset=offset, stream=stream)


@wrong
class back_without_a_wait(OnLibrary):
    """Copies to the host without a stream do not wait, above 256 KiB."""

    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        if stream is None and destination.nbytes > 1 << 18:
            stream = self.streams.get(source.device_id)
        super().copy_device_to_host(source, destination, offset=offset, stream=stream)


@wrong
class takes_any_stream(OnLibrary):
    """A stream of another device is taken, and the device's own used."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        if stream is not None and stream.device_id != destination.device_id:
            stream = None
        super().copy_host_to_device(destination, source, offset=offset, stream=stream)
