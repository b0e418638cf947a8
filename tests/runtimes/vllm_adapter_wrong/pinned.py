"""Pinned memory that is shared, too short, read-only or refused."""

from __future__ import annotations

from vllm_adapter_wrong.zoo import Host, wrong


@wrong
class one_pinned_buffer_a_size(Host):
    def __init__(self):
        super().__init__()
        self.buffers = {}

    def allocate_pinned_memory(self, size):
        return memoryview(self.buffers.setdefault(size, bytearray(size)))


@wrong
class pinned_ring(Host):
    """A ring of 16 MiB, which is passed after a while."""

    def __init__(self):
        super().__init__()
        self.ring, self.at = bytearray(16 << 20), 0

    def allocate_pinned_memory(self, size):
        if size > len(self.ring) // 2:
            return super().allocate_pinned_memory(size)
        if self.at + size > len(self.ring):
            self.at = 0
        view = memoryview(self.ring)[self.at : self.at + size]
        self.at += size
        return view


@wrong
class large_pinned_is_read_only(Host):
    def allocate_pinned_memory(self, size):
        return memoryview(bytes(size)) if size > 4 << 20 else memoryview(bytearray(size))


@wrong
class pinned_in_pages(Host):
    """As many bytes as whole pages hold."""

    def allocate_pinned_memory(self, size):
        return memoryview(bytearray((size + 4095) // 4096 * 4096))


@wrong
class no_pinned_zero(Host):
    def allocate_pinned_memory(self, size):
        if not size:
            raise ValueError("size must be positive")
        return super().allocate_pinned_memory(size)


@wrong
class pinned_words(Host):
    """A view of 8-byte words where the size allows it: `view[:n]` is then no n bytes."""

    def allocate_pinned_memory(self, size):
        view = memoryview(bytearray(size))
        return view.cast("Q") if size and size % 8 == 0 else view
