"""Fresh device memory as a tensor of any shape, strides and dtype.

The library's deleter is C, and has to be: one of Python's fails when torch drops a tensor while an
exception is unwinding, and waits for the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.runtime.c_library.dlpack import device_bytes
from vllm_adapter.errors import DeviceError, OutOfMemory

CPU: Final = torch._C.DispatchKey.CPU
_AS_STRIDED: Final = torch.ops.aten.as_strided.default
_VIEW_DTYPE: Final = torch.ops.aten.view.dtype


def empty(
    library: Library,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: int,
    strides: Sequence[int] | None = None,
) -> torch.Tensor:
    """A tensor in fresh memory; contiguous unless strides are given. Its elements are undefined.

    Gives [*shape]; strides are in elements.

    Raises:
        torch.OutOfMemoryError: nothing was allocated.
        NoSuchDevice, DeviceError: the device cannot be used.
    """
    if min(shape, default=0) < 0:
        raise DeviceError(
            f"a tensor cannot have the shape {list(shape)}", hint="extents must not be negative"
        )
    library.open(device)
    strides = contiguous_strides(shape) if strides is None else strides
    try:
        raw = device_bytes(library, reach(shape, strides) * dtype.itemsize, device)
    except OutOfMemory as error:  # what torch's own callers catch
        raise torch.OutOfMemoryError(str(error)) from error
    # Below autograd, which would take the result for a view of the bytes.
    if dtype != torch.uint8:
        with torch._C._AutoDispatchBelowAutograd():
            raw = _VIEW_DTYPE(raw, dtype)
    made: torch.Tensor = _AS_STRIDED._op_dk(CPU, raw, shape, strides, 0)
    return made


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides that torch gives a contiguous tensor."""
    strides = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        strides[k] = strides[k + 1] * max(shape[k + 1], 1)
    return tuple(strides)


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last that strides touch."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
