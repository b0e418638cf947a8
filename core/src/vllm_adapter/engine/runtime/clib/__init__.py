"""A chip's C library for the engine: memory as tensors, streams, and prepared calls.

What needs no torch is in `vllm_adapter.clib`: the ABI's mirror, loading, statuses.
"""

from vllm_adapter.clib.library import DeviceInfo, Library
from vllm_adapter.engine.runtime.clib.dlpack import device_bytes
from vllm_adapter.engine.runtime.clib.runtime import ClibRuntime, DeviceMemory
from vllm_adapter.engine.runtime.clib.streams import ClibEvent, ClibStream, CurrentStreams

__all__ = [
    "ClibEvent",
    "ClibRuntime",
    "ClibStream",
    "CurrentStreams",
    "DeviceInfo",
    "DeviceMemory",
    "Library",
    "device_bytes",
]
