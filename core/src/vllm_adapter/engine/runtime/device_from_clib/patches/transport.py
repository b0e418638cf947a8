"""Tensors of the device go through queues and pipes by value: processes share no device memory.

The process that receives one gets the device, too, and the one that sent it may end: the bytes are
in the message. A host tensor would be shared memory, whose name only a living sender can give.

# upstream: pytorch@2.13 torch/multiprocessing/reductions.py:221 would share the storage
"""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.multiprocessing import reductions

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend


def apply(backend: Backend, module: ModuleType) -> None:
    """Replaces how multiprocessing sends tensors and parameters."""

    torchs: Any = reductions.reduce_tensor

    def reduce(tensor: torch.Tensor) -> Any:
        """tensor: [...] -> the call that rebuilds it in another process."""
        if tensor.device.type != backend.name:
            return torchs(tensor)
        host = io.BytesIO()
        torch.save(tensor.detach().cpu(), host)
        where = (backend.name, str(backend.library.path), tensor.get_device())
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return rebuild, (*where, host.getvalue(), is_parameter, tensor.requires_grad)

    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce)


def rebuild(
    name: str, path: str, index: int, host: bytes, is_parameter: bool, grad: bool
) -> torch.Tensor:
    """The tensor in the process that receives it, on the device of the same index.

    host: [...], of the dtype and shape that the tensor had.
    """
    from vllm_adapter.c_abi.library import Library
    from vllm_adapter.engine.runtime.device_from_clib.enable import enable, enabled

    if enabled() is None:
        enable(name, Library(Path(path)))
    made: torch.Tensor = torch.load(io.BytesIO(host), weights_only=True).to(f"{name}:{index}")
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad=grad)
    return made.requires_grad_(grad)
