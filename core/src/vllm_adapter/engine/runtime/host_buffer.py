"""Host buffers that a copy may use."""

from __future__ import annotations

from vllm_adapter.errors import DeviceError


def check_readable(buffer: memoryview) -> None:
    """Raises DeviceError if there are gaps between the buffer's elements."""
    if not buffer.c_contiguous:
        raise DeviceError(
            "the host buffer of a copy is not contiguous", hint="copy it to a bytearray first"
        )


def check_writable(buffer: memoryview) -> None:
    """Raises DeviceError if the buffer has gaps, or is read-only."""
    check_readable(buffer)
    if buffer.readonly:
        raise DeviceError(
            "the destination of a copy is read-only", hint="give a memoryview of a bytearray"
        )
