"""A chip's C library for the engine: memory as tensors, streams, and prepared calls.

What needs no torch is in `vllm_adapter.c_abi`: the ABI's mirror, loading, statuses.
"""

from vllm_adapter.c_abi.library import Library, LibraryDevice
from vllm_adapter.engine.runtime.c_library.dlpack import device_bytes
from vllm_adapter.engine.runtime.c_library.runtime import CLibraryRuntime, DeviceMemory
from vllm_adapter.engine.runtime.c_library.streams import (
    CLibraryEvent,
    CLibraryStream,
    CurrentStreams,
)

__all__ = [
    "CLibraryEvent",
    "CLibraryRuntime",
    "CLibraryStream",
    "CurrentStreams",
    "DeviceMemory",
    "Library",
    "LibraryDevice",
    "device_bytes",
]
