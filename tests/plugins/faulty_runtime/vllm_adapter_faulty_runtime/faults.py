"""Runtimes of the CPU with one fault each, by the name of the fault."""

from __future__ import annotations

import os
import signal
import time
import warnings

import torch

from vllm_adapter import Allocation, FrameworkRuntime, MemoryCapacity, MemoryStats, OutOfMemory

FAULTS = {}


def fault(kind):
    FAULTS[kind.__name__] = kind
    return kind


class Cpu(FrameworkRuntime):
    def __init__(self):
        super().__init__("cpu")


@fault
class none(Cpu):
    pass


@fault
class no_copy_to(Cpu):
    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        destination.bytes_at(offset, source.nbytes)


@fault
class no_copy_back(Cpu):
    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        source.bytes_at(offset, destination.nbytes)


@fault
class copies_later(Cpu):
    """Keeps the caller's buffer until somebody waits."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        destination.bytes_at(offset, source.nbytes)
        self.waiting.append((destination, source, offset))

    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        self.synchronize_stream(0)
        super().copy_device_to_host(source, destination, offset=offset)

    def synchronize_stream(self, device_id, stream=None):
        super().synchronize_stream(device_id, stream)
        waiting, self.waiting = self.waiting, []
        for destination, source, offset in waiting:
            super().copy_host_to_device(destination, source, offset=offset)


@fault
class last_first(Cpu):
    """What is queued before a wait runs in reverse."""

    def __init__(self):
        super().__init__()
        self.queue = []

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        destination.bytes_at(offset, source.nbytes)
        copy = super().copy_host_to_device
        self.queue.append(lambda: copy(destination, source, offset=offset))

    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        source.bytes_at(offset, destination.nbytes)
        copy = super().copy_device_to_host
        self.queue.append(lambda: copy(source, destination, offset=offset))

    def synchronize_stream(self, device_id, stream=None):
        super().synchronize_stream(device_id, stream)
        queue, self.queue = self.queue, []
        for run in reversed(queue):
            run()


@fault
class whole_granules(Cpu):
    """Copies multiples of 64 bytes, as some DMA engines do."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        destination.bytes_at(offset, source.nbytes)
        room = destination.size - offset - source.nbytes
        padding = min(-source.nbytes % 64, room)
        super().copy_host_to_device(
            destination, memoryview(bytes(source) + bytes(padding)), offset=offset
        )


@fault
class clips_copies(Cpu):
    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        start = min(max(offset, 0), destination.size)
        part = source[: destination.size - start]
        super().copy_host_to_device(destination, part, offset=start)


@fault
class refuses_too_late(Cpu):
    """Raises OutOfBounds after it has copied what fits."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        if 0 <= offset < destination.size < offset + source.nbytes:
            part = source[: destination.size - offset]
            super().copy_host_to_device(destination, part, offset=offset)
        super().copy_host_to_device(destination, source, offset=offset)


@fault
class writes_constants(Cpu):
    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        origin = source.bytes_at(offset, destination.nbytes)
        with warnings.catch_warnings(action="ignore"):  # torch warns of exactly this fault
            torch.frombuffer(destination, dtype=torch.uint8).copy_(origin)


@fault
class needs_bytes(Cpu):
    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        if not source.nbytes:
            raise ValueError("nothing to copy")
        super().copy_host_to_device(destination, source, offset=offset)


class Lenient(Allocation):
    def free(self):
        if self.is_live:
            super().free()


@fault
class frees_twice(Cpu):
    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size, device_id, alignment=alignment)
        return self._record(Lenient(memory.storage, device_id))


@fault
class counts_forever(Cpu):
    """What was allocated once stays in the figures."""

    def __init__(self):
        super().__init__()
        self.bytes = self.count = 0

    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size, device_id, alignment=alignment)
        self.bytes, self.count = self.bytes + size, self.count + 1
        return memory

    def memory_stats(self, device_id):
        return MemoryStats(self.bytes, self.count, "a counter")


@fault
class keeps_memory(Cpu):
    """The figures are right, and the memory is never given back."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size, device_id, alignment=alignment)
        self.kept.append(memory.storage)
        return memory


@fault
class misaligned(Cpu):
    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size + 1, device_id, alignment=alignment)
        return self._record(Allocation(memory.storage[1:], device_id))


@fault
class takes_any_alignment(Cpu):
    def allocate_memory(self, size, device_id, *, alignment=None):
        if alignment is not None and alignment & (alignment - 1):
            alignment = None
        return super().allocate_memory(size, device_id, alignment=alignment)


@fault
class one_byte_short(Cpu):
    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size, device_id, alignment=alignment)
        short = Allocation(memory.storage[: max(0, size - 1)], device_id)
        short.size = size
        return self._record(short)


@fault
class overlapping(Cpu):
    """An arena that rounds sizes down."""

    def __init__(self):
        super().__init__()
        self.arena, self.at = torch.zeros(1 << 24, dtype=torch.uint8), 0

    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size, device_id, alignment=alignment)
        if alignment is not None or size > 1 << 20:
            return memory
        start = (self.at + (-self.arena.data_ptr() % 64)) % (1 << 22)
        self.at = start + size // 64 * 64
        return self._record(Allocation(self.arena[start : start + size], device_id))


@fault
class grants_too_much(Cpu):
    def allocate_memory(self, size, device_id, *, alignment=None):
        try:
            return super().allocate_memory(size, device_id, alignment=alignment)
        except OutOfMemory:
            return super().allocate_memory(64, device_id)


@fault
class untyped_out_of_memory(Cpu):
    def allocate_memory(self, size, device_id, *, alignment=None):
        try:
            return super().allocate_memory(size, device_id, alignment=alignment)
        except OutOfMemory:
            raise RuntimeError("driver error 2") from None


@fault
class counts_one_more(Cpu):
    def get_device_count(self):
        return 2


@fault
class counts_none(Cpu):
    def get_device_count(self):
        return 0


@fault
class wraps_index(Cpu):
    def device(self, device_id):
        return super().device(device_id % self.get_device_count())


@fault
class capability_changes(Cpu):
    asked = 0

    def get_device_capability(self, device_id):
        self.asked += 1
        return (9, self.asked)


@fault
class more_free_than_total(Cpu):
    def query_memory_capacity(self, device_id):
        found = super().query_memory_capacity(device_id)
        return MemoryCapacity(found.total_bytes, found.total_bytes + 1, found.unified)


@fault
class not_unified(Cpu):
    def query_memory_capacity(self, device_id):
        found = super().query_memory_capacity(device_id)
        return MemoryCapacity(found.total_bytes, found.free_bytes, unified=False)


@fault
class one_staging_buffer(Cpu):
    """All threads copy through one buffer."""

    staging = b""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        self.staging = bytes(source)
        time.sleep(0.001)
        part = memoryview(self.staging)[: destination.size - offset]
        super().copy_host_to_device(destination, part, offset=offset)


@fault
class short_pinned(Cpu):
    def allocate_pinned_memory(self, size):
        return memoryview(bytearray(max(1, size - 1)))


@fault
class does_not_open(Cpu):
    def __init__(self):
        raise OSError("libfaulty.so: cannot open shared object file")


@fault
class crashes_and_hangs(Cpu):
    """Dies at 4095 bytes, leaves at 1, and never returns at 1 MiB and 3 bytes."""

    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        match destination.nbytes:
            case 4095:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 1:
                os._exit(7)
            case 1_048_579:
                time.sleep(3600)
        super().copy_device_to_host(source, destination, offset=offset)
