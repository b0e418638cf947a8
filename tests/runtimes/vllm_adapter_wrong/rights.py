"""Right runtimes of other builds: no rule may fail them."""

from __future__ import annotations

import threading

from vllm_adapter import Allocation, MemoryCapacity
from vllm_adapter_wrong.devices import OnLibrary
from vllm_adapter_wrong.zoo import Host, wrong

STAGE = 1 << 20
STEP = 8 << 20


@wrong
class right_host(Host):
    """What the host's wrong ones are made of."""


@wrong
class right_staged(Host):
    """All copies go through one buffer, a piece at a time, behind a lock."""

    def __init__(self):
        super().__init__()
        self.lock, self.stage = threading.Lock(), bytearray(STAGE)

    def put(self, destination, data, offset):
        for at in range(0, len(data), STAGE):
            part = data[at : at + STAGE]
            with self.lock:
                self.stage[: len(part)] = part
                super().put(destination, self.stage[: len(part)], offset + at)


class Pool:
    """Keeps what was freed, and gives it to the next request of the same size class."""

    def __init__(self):
        self.lock, self.kept, self.held = threading.Lock(), {}, {}

    def take(self, key, make):
        with self.lock:
            kept = self.kept.get(key)
            self.held[key] = self.held.get(key, 0) + 1
            return kept.pop() if kept else make()

    def give(self, key, storage):
        with self.lock:
            self.kept.setdefault(key, []).append(storage)
            self.held[key] -= 1

    def bytes_kept(self):
        with self.lock:
            return sum(storage.numel() for found in self.kept.values() for storage in found)


class Pooled(Allocation):
    """Goes back to its pool."""

    def __init__(self, storage, device_id, whole, key, pool):
        super().__init__(storage, device_id)
        self.back = (key, whole, pool)

    def free(self):
        super().free()
        key, whole, pool = self.back
        self.back = None
        pool.give(key, whole)


@wrong
class right_host_pool(Host):
    """Blocks of a power of two are kept and given again; they are counted as free by nobody."""

    def __init__(self):
        super().__init__()
        self.pool = Pool()

    def allocate_memory(self, size, device_id, *, alignment=None):
        if size < 1 or size > 1 << 24 or alignment is not None:
            return super().allocate_memory(size, device_id, alignment=alignment)
        key, whole = (device_id, size), super().allocate_memory
        storage = self.pool.take(key, lambda: whole(size, device_id).storage)
        return self._record(Pooled(storage, device_id, storage, key, self.pool))


@wrong
class right_library_pool(OnLibrary):
    """Memory is taken in multiples of 8 MiB and kept by size; what the pool holds is told."""

    def __init__(self, name):
        super().__init__(name)
        self.pools = [Pool(), Pool()]

    def allocate_memory(self, size, device_id, *, alignment=None):
        if not 1 << 20 <= size <= 1 << 28 or alignment is not None:
            return self.after_room(size, device_id, alignment)
        whole = (size + STEP - 1) // STEP * STEP
        pool = self.pools[device_id]
        storage = pool.take(whole, lambda: self.after_room(whole, device_id, None).storage)
        return self._record(Pooled(storage[:size], device_id, storage, whole, pool))

    def after_room(self, size, device_id, alignment):
        """As the library, after the pool was emptied where it has no more."""
        try:
            return super().allocate_memory(size, device_id, alignment=alignment)
        except Exception:
            self.device(device_id)
            with self.pools[device_id].lock:
                self.pools[device_id].kept.clear()
            return super().allocate_memory(size, device_id, alignment=alignment)

    def query_memory_capacity(self, device_id):
        found = super().query_memory_capacity(device_id)
        kept = self.pools[device_id].bytes_kept()
        lent = sum(key * count for key, count in self.pools[device_id].held.items())
        asked = sum(
            memory.size
            for memory in list(self._live)
            if isinstance(memory, Pooled) and memory.is_live and memory.device_id == device_id
        )
        return MemoryCapacity(
            found.total_bytes, found.free_bytes, unified=False, pooled_bytes=kept + lent - asked
        )

    def memory_stats(self, device_id):
        found = super().memory_stats(device_id)
        live = [m for m in list(self._live) if m.is_live and m.device_id == device_id]
        return type(found)(sum(m.size for m in live), len(live), "allocations")


@wrong
class right_in_pieces(OnLibrary):
    """Copies are sent in pieces of 1 MiB."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        destination.bytes_at(offset, source.nbytes)
        if source.nbytes <= STAGE or not source.c_contiguous:
            super().copy_host_to_device(destination, source, offset=offset, stream=stream)
            return
        view = source.cast("B")
        for at in range(0, source.nbytes, STAGE):
            part = view[at : at + STAGE]
            super().copy_host_to_device(destination, part, offset=offset + at, stream=stream)


@wrong
class right_waits_always(OnLibrary):
    """Copies on a stream are done when they return, but not those from the device."""

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        super().copy_host_to_device(destination, source, offset=offset, stream=stream)
        if stream is not None:
            stream.synchronize()
