"""torch.load makes a device's storage with `storage.to`, which loses our index and memory.

# upstream: pytorch@2.13 torch/serialization.py:679 priority 23 is torch's entry for such devices
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import torch

from vllm_adapter.engine.process_objects import stand_in
from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.patches import storage

PRIORITY: Final = 5
"""Before all of torch's own entries."""


def apply(backend: Backend, module: ModuleType) -> None:
    """Registers how storages of the device are named in a file, and made from one."""

    def tag(saved: Any) -> str | None:
        ours = saved.device.type == backend.name
        return f"{backend.name}:{saved.device.index}" if ours else None

    def restore(host: Any, location: str) -> torch.UntypedStorage | None:
        if location.partition(":")[0] != backend.name:
            return None
        made = storage.make(backend, host.nbytes(), location)
        made.copy_(host)
        return made

    tag_now = stand_in(("torch.save", backend.name), tag)
    restore_now = stand_in(("torch.load", backend.name), restore)
    if tag_now is not None and restore_now is not None:
        torch.serialization.register_package(PRIORITY, tag_now, restore_now)
