"""The table of wrong runtimes in Python, and what they are made of."""

from __future__ import annotations

from vllm_adapter import FrameworkRuntime

RUNTIMES = {}
"""By name: the class, on the host or on the simulated accelerator's library."""


def wrong(kind):
    """Notes a runtime under its own name."""
    assert kind.__name__ not in RUNTIMES
    RUNTIMES[kind.__name__] = kind
    return kind


class Host(FrameworkRuntime):
    """The host as a device, with the two directions of a copy as places for a fault."""

    on_library = False

    def __init__(self):
        super().__init__("cpu")

    def put(self, destination, data, offset):
        super().copy_host_to_device(destination, memoryview(data), offset=offset)

    def get(self, source, length, offset):
        data = bytearray(length)
        super().copy_device_to_host(source, memoryview(data), offset=offset)
        return data

    def copy_host_to_device(self, destination, source, *, offset=0, stream=None):
        self.check(destination, source, offset)
        self.put(destination, bytes(source.cast("B")) if source.nbytes else b"", offset)

    def copy_device_to_host(self, source, destination, *, offset=0, stream=None):
        self.check(source, destination, offset)
        if destination.readonly:  # core's own refusal
            super().copy_device_to_host(source, destination, offset=offset)
        if destination.nbytes:
            destination.cast("B")[:] = self.get(source, destination.nbytes, offset)

    def check(self, memory, host, offset):
        memory.bytes_at(offset, host.nbytes)
