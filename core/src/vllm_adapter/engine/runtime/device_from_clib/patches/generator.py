"""`torch.Generator(device=ours)` raises: such a device has no engine. A CPU generator stands in.

The fallback draws random numbers on the host, so the CPU's generator is what it draws from.

# upstream: pytorch@2.13 torch/random.py:128 and the constructor of torch._C.Generator
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend


def apply(backend: Backend, module: ModuleType) -> None:
    """Replaces torch.Generator by a class that makes, and takes for its own, torch's."""
    original = torch.Generator

    class GeneratorMeta(type):
        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            kind = torch.device(device).type
            return original("cpu" if kind == backend.name else device)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original)

    setattr(torch, "Generator", GeneratorMeta("Generator", (), {"__doc__": original.__doc__}))  # noqa: B010 # a class of torch
