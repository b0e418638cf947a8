"""torch.accelerator asks a guard and an allocator that Python cannot supply: ours answers.

# upstream: pytorch@2.13 torch/accelerator/__init__.py:140 the guard's current device is always 0
# upstream: pytorch@2.13 torch/accelerator/memory.py:30 no allocator is ever initialized
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import torch

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend

_NAMES: Final = {
    "current_device_index": "current_device",
    "current_device_idx": "current_device",
    "set_device_index": "set_device",
    "set_device_idx": "set_device",
    "device_index": "device",
    "current_stream": "current_stream",
    "set_stream": "set_stream",
    "synchronize": "synchronize",
}
_MEMORY: Final = {
    "empty_cache": "empty_cache",
    "empty_host_cache": "empty_cache",
    "get_memory_info": "mem_get_info",
    "memory_stats": "memory_stats",
    "memory_allocated": "memory_allocated",
    "max_memory_allocated": "max_memory_allocated",
    "memory_reserved": "memory_reserved",
    "max_memory_reserved": "max_memory_reserved",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
    "reset_accumulated_memory_stats": "reset_accumulated_memory_stats",
}


def apply(backend: Backend, module: ModuleType) -> None:
    """Gives torch.accelerator the functions of `torch.<name>`.

    It is for one kind of device a process, and prefers ours to CUDA where both are there: so a
    device is enabled on request only.
    """

    def get_device_capability(device: Any = None, /) -> dict[str, Any]:
        return {"supported_dtypes": backend.dtypes(backend.streams.index(device))}

    for place, names in (
        (torch.accelerator, _NAMES | _MEMORY),
        (torch.accelerator.memory, _MEMORY),
    ):
        for name, ours in names.items():
            setattr(place, name, getattr(module, ours))
    torch.accelerator.get_device_capability = get_device_capability  # type: ignore[assignment] # torch caches it in C
