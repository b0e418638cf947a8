"""`torch.UntypedStorage(n, device=ours)` ends the interpreter: it is made of a tensor instead.

# upstream: pytorch@2.13 torch/storage.py:467 its base asks the device's allocator, which is null;
# copy.deepcopy (torch/storage.py:237) and torch.load come by there
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend


def make(backend: Backend, size: int, device: Any) -> torch.UntypedStorage:
    """A storage of `size` bytes on one of our devices."""
    index = backend.streams.index(device)
    return backend.empty([size], torch.uint8, index).untyped_storage()


def apply(backend: Backend, module: ModuleType) -> None:
    """Replaces the constructor of torch.UntypedStorage."""
    original: Any = torch.UntypedStorage.__new__

    def new(cls: type, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is None:
            return original(cls, *args, **options)
        if torch.device(device).type != backend.name:
            return original(cls, *args, device=device, **options)
        size = args[0] if args else options.get("size", 0)
        return make(backend, size, device)

    setattr(torch.UntypedStorage, "__new__", new)  # noqa: B010 # mypy knows no such assignment
