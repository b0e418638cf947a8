"""Memory that is counted, aligned, refused or given back wrongly."""

from __future__ import annotations

import ctypes
import time

import torch

from vllm_adapter import Allocation, MemoryCapacity, MemoryStats, NoSuchDevice, OutOfMemory
from vllm_adapter_wrong.zoo import Host, wrong

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)


class Figures(Host):
    """The capacity passes through `seen`."""

    def query_memory_capacity(self, device_id):
        found = super().query_memory_capacity(device_id)
        total, free = self.seen(found.total_bytes, found.free_bytes)
        return MemoryCapacity(total, free, found.unified)


@wrong
class twice_the_memory(Figures):
    def seen(self, total, free):
        return 2 * total, free


@wrong
class total_of_a_data_sheet(Figures):
    def seen(self, total, free):
        return 1 << 40, free


@wrong
class all_is_free(Figures):
    def seen(self, total, free):
        return total, total


@wrong
class free_is_asked_once(Figures):
    free = None

    def seen(self, total, free):
        self.free = free if self.free is None else self.free
        return total, self.free


@wrong
class free_in_kib(Figures):
    def seen(self, total, free):
        return total, free // 1024


@wrong
class total_shrinks(Figures):
    asked = 0

    def seen(self, total, free):
        self.asked += 1
        total -= self.asked << 20
        return total, min(free, total)


@wrong
class used_is_free(Figures):
    def seen(self, total, free):
        return total, total - free


class Usable(Allocation):
    """Its bytes can be read after it was given back."""

    @property
    def storage(self):
        return self.kept

    def __init__(self, storage, device_id):
        super().__init__(storage, device_id)
        self.kept = storage


class Allocations(Host):
    """Allocations of a class of our own."""

    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size, device_id, alignment=alignment)
        return self._record(self.kind(memory.storage, device_id))


@wrong
class usable_after_free(Allocations):
    kind = Usable


class Racing(Allocation):
    """Two threads may both give it back."""

    def free(self):
        if not self.is_live:
            super().free()
        time.sleep(0.002)
        self._storage = None


@wrong
class frees_twice_in_two_threads(Allocations):
    kind = Racing


class Untyped(Allocation):
    def free(self):
        if not self.is_live:
            raise RuntimeError("invalid device pointer")
        super().free()


@wrong
class second_free_untyped(Allocations):
    kind = Untyped


class ForgetsOffset(Allocation):
    def tensor(self, shape, dtype, *, offset=0):
        return super().tensor(shape, dtype, offset=offset if dtype.itemsize == 1 else 0)


@wrong
class tensor_forgets_its_offset(Allocations):
    kind = ForgetsOffset


class Unbounded(Allocation):
    def bytes_at(self, offset, length):
        if offset + length > self.size and offset >= 0:
            return torch.zeros(length, dtype=torch.uint8)
        return super().bytes_at(offset, length)


@wrong
class tensor_beyond_its_end(Allocations):
    kind = Unbounded


class Aligned(Host):
    """The alignment that is asked for passes through `step`, or the address is moved."""

    def placed(self, size, device_id, step, beside):
        """An address that is a multiple of `step` and, moved by `beside`, of nothing more."""
        raw = torch.empty(size + 2 * step + beside, dtype=torch.uint8)
        shift = -raw.data_ptr() % (2 * step) + beside
        return self._record(Allocation(raw[shift : shift + size], device_id))


@wrong
class small_is_aligned_to_16(Aligned):
    def allocate_memory(self, size, device_id, *, alignment=None):
        if alignment and alignment > 16 and 0 < size < 4096:
            return self.placed(size, device_id, alignment, 16)
        return super().allocate_memory(size, device_id, alignment=alignment)


@wrong
class alignment_to_a_page_at_most(Aligned):
    def allocate_memory(self, size, device_id, *, alignment=None):
        if alignment and alignment > 4096 and not alignment & (alignment - 1):
            return self.placed(size, device_id, alignment, 4096)
        return super().allocate_memory(size, device_id, alignment=alignment)


@wrong
class alignment_of_2_mib_is_1(Aligned):
    def allocate_memory(self, size, device_id, *, alignment=None):
        if alignment and alignment >= 2 << 20 and not alignment & (alignment - 1):
            return self.placed(size, device_id, alignment, 1 << 20)
        return super().allocate_memory(size, device_id, alignment=alignment)


@wrong
class large_is_aligned_to_8(Aligned):
    """What nobody asked an alignment for, above 1 MiB."""

    def allocate_memory(self, size, device_id, *, alignment=None):
        if alignment is None and size > 1 << 20:
            return self.placed(size, device_id, 64, 8)
        return super().allocate_memory(size, device_id, alignment=alignment)


@wrong
class alignment_1_refused(Host):
    def allocate_memory(self, size, device_id, *, alignment=None):
        if alignment is not None and alignment < 8:
            alignment = 3  # what core refuses
        return super().allocate_memory(size, device_id, alignment=alignment)


@wrong
class no_zero_bytes(Host):
    def allocate_memory(self, size, device_id, *, alignment=None):
        if not size:
            raise OutOfMemory("nothing to allocate", hint="ask for more")
        return super().allocate_memory(size, device_id, alignment=alignment)


@wrong
class negative_is_nothing(Host):
    def allocate_memory(self, size, device_id, *, alignment=None):
        return super().allocate_memory(max(0, size), device_id, alignment=alignment)


@wrong
class pool_of_64(Host):
    """With more than 64 small pieces the oldest one's bytes are given again."""

    def __init__(self):
        super().__init__()
        self.pool = []

    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size, device_id, alignment=alignment)
        if not 0 < size <= 4096 or alignment is not None:
            return memory
        if len(self.pool) < 64:
            self.pool.append(super().allocate_memory(4096, device_id).storage)
        else:
            self.pool.append(self.pool.pop(0))
        return self._record(Allocation(self.pool[-1][:size], device_id))


@wrong
class counts_what_it_refused(Host):
    """An allocation that failed is in the figures for ever."""

    refused = 0

    def allocate_memory(self, size, device_id, *, alignment=None):
        try:
            return super().allocate_memory(size, device_id, alignment=alignment)
        except OutOfMemory:
            self.refused += 1
            raise

    def memory_stats(self, device_id):
        found = super().memory_stats(device_id)
        return MemoryStats(
            found.allocated_bytes, found.live_allocations + self.refused, found.source
        )


@wrong
class refuses_the_next_one_too(Host):
    """After it has run out once, the next allocation fails, too."""

    out = False

    def allocate_memory(self, size, device_id, *, alignment=None):
        if self.out and size:
            self.out = False
            raise OutOfMemory("the device has no memory", hint="wait")
        try:
            return super().allocate_memory(size, device_id, alignment=alignment)
        except OutOfMemory:
            self.out = True
            raise


@wrong
class counts_large_ones_alone(Host):
    def memory_stats(self, device_id):
        live = [m for m in list(self._live) if m.is_live and m.size >= 1 << 20]
        return MemoryStats(sum(m.size for m in live), len(live), "allocations")


@wrong
class leaks_4_kib(Host):
    """Every allocation leaves 4 KiB of the host behind."""

    def allocate_memory(self, size, device_id, *, alignment=None):
        ctypes.memset(LIBC.malloc(4096), 1, 4096)
        return super().allocate_memory(size, device_id, alignment=alignment)


@wrong
class leaks_64_bytes(Host):
    def allocate_memory(self, size, device_id, *, alignment=None):
        ctypes.memset(LIBC.malloc(64), 1, 64)
        return super().allocate_memory(size, device_id, alignment=alignment)


@wrong
class leaks_small_memory(Host):
    """Pieces of at most 4096 bytes are never given back."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def allocate_memory(self, size, device_id, *, alignment=None):
        memory = super().allocate_memory(size, device_id, alignment=alignment)
        if size <= 4096:
            self.kept.append(memory.storage)
        return memory


@wrong
class capacity_of_any_device(Host):
    """No device of that index, and figures all the same."""

    def query_memory_capacity(self, device_id):
        return super().query_memory_capacity(0)

    def memory_stats(self, device_id):
        return super().memory_stats(0)


@wrong
class untyped_index(Host):
    def device(self, device_id):
        try:
            return super().device(device_id)
        except NoSuchDevice:
            raise IndexError(device_id) from None

    def query_memory_capacity(self, device_id):
        self.device(device_id)
        return super().query_memory_capacity(device_id)
