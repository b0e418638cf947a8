"""`torch.Stream(device=ours)` and `torch.Event(device=ours)` would wait for nothing.

So our own are made: torch's ask the guard, whose stream and event calls do nothing for a device
that Python brought, and a program would read data that is not there yet.

# upstream: pytorch@2.13 torch/utils/backend_registration.py:537 the guard, of which Python may
# say the type alone
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend


def apply(backend: Backend, module: ModuleType) -> None:
    """Replaces torch.Stream and torch.Event by classes that make ours for our device."""
    for name in ("Stream", "Event"):
        setattr(torch, name, _standing_for(getattr(torch, name), getattr(module, name), backend))


def _standing_for(original: Any, ours: Any, backend: Backend) -> Any:
    class StreamMeta(type(original)):  # type: ignore[misc] # torch's classes may have one
        def __call__(cls, *args: Any, **options: Any) -> Any:
            if cls is not standing:
                return super().__call__(*args, **options)
            device = options.get("device", args[0] if args else None)
            if isinstance(device, int) or device is None:
                wanted = backend.name if "stream_id" not in options else None
            else:
                wanted = torch.device(device).type
            return (ours if wanted == backend.name else original)(*args, **options)

        def __instancecheck__(cls, instance: object) -> bool:
            if cls is not standing:
                return bool(super().__instancecheck__(instance))
            return isinstance(instance, original)

        def __subclasscheck__(cls, subclass: type) -> bool:
            if cls is not standing:
                return bool(super().__subclasscheck__(subclass))
            return issubclass(subclass, original)

    standing = StreamMeta(original.__name__, (original,), {"__doc__": original.__doc__})
    return standing
