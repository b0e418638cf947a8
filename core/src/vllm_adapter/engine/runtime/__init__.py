"""Runtimes: how core reaches a device's memory, copies and streams."""

from vllm_adapter.engine.runtime.base import (
    Allocation,
    MemoryCapacity,
    MemoryStats,
    RuntimeAdapter,
    Stream,
)
from vllm_adapter.engine.runtime.framework import FrameworkRuntime, typed_out_of_memory

__all__ = [
    "Allocation",
    "FrameworkRuntime",
    "MemoryCapacity",
    "MemoryStats",
    "RuntimeAdapter",
    "Stream",
    "typed_out_of_memory",
]
