"""Our platform classes, made when vLLM asks for one by its dotted name."""

from __future__ import annotations

import importlib
from typing import Any, Final

from vllm_adapter.broker.selection import GENERIC
from vllm_adapter.engine.integrations.vllm.mixin import PortableMixin

NATIVE: Final = {
    "NativeCpu": ("vllm.platforms.cpu", "CpuPlatform"),
    "NativeCuda": ("vllm.platforms.cuda", "CudaPlatform"),
    "NativeRocm": ("vllm.platforms.rocm", "RocmPlatform"),
    "NativeXpu": ("vllm.platforms.xpu", "XPUPlatform"),
}
"""Our name -> vLLM's class. Each keeps its `_enum`: every `is_cpu()` of vLLM stays true."""


def __getattr__(name: str) -> Any:
    if name in NATIVE:
        module, base = NATIVE[name]
        made = type(name, (PortableMixin, getattr(importlib.import_module(module), base)), {})
        made.__module__ = __name__
    elif name == GENERIC:
        made = importlib.import_module(f"{__package__}.generic.platform").make(name, __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made
    return made
