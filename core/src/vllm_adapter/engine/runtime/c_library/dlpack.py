"""A library's memory as a torch tensor, by DLPack: no C++ extension, no allocator in torch.

torch reads DLPack's device type 12 as PrivateUse1 and keeps device index, address, byte count and
deleter: `data_ptr()` is the chip's own address, views share the block, and the library's deleter
runs when the last of them dies. So torch has to know a PrivateUse1 device: see `device_from_clib`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library
from vllm_adapter.errors import DeviceError, OutOfMemory

_LARGEST: Final = 2**62
"""Above it, sizes wrap in somebody's signed arithmetic; no device has as much."""
# Prototypes of our own: those of ctypes.pythonapi are shared by the whole process.
_NEW_CAPSULE: Final = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_IS_UNUSED: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_NAME: Final = b"dltensor"  # PyCapsule keeps the pointer, not the text


def device_bytes(
    library: Library, size: int, device_id: int, *, alignment: int = 0
) -> torch.Tensor:
    """Fresh device memory as uint8[size], freed by the library with its last view.

    `alignment` is in bytes, 0 the device's own. The device must be open.

    Raises:
        OutOfMemory: the device cannot give that much; nothing was allocated.
        DeviceError: the library refuses the alignment, or gave something else; or torch knows no
            PrivateUse1 device.
    """
    if not 0 <= size < _LARGEST:
        raise OutOfMemory(
            f"no device can give {size} bytes", hint="check the size: it is not plausible"
        )
    managed = ctypes.c_void_p()
    library.call("allocate", device_id, size, alignment, ctypes.byref(managed))
    if not managed.value:
        raise DeviceError(
            f"{library.path.name}: allocate says OK and gives no memory",
            hint="report it to the library's vendor",
        )
    given = abi.ManagedTensor.from_address(managed.value)
    capsule: Any = _NEW_CAPSULE(managed, _NAME, None)
    try:
        _check(library, given, size, device_id)
        tensor: torch.Tensor = torch._C._from_dlpack(capsule)
    except BaseException as error:
        # torch may fail after it has taken the memory over, and has released it then.
        # upstream: pytorch@2.13 torch/csrc/utils/tensor_new.cpp:tensor_fromDLPackImpl
        if _IS_UNUSED(capsule, _NAME) and given.deleter:
            given.deleter(managed)
        if isinstance(error, ModuleNotFoundError):
            raise DeviceError(
                "torch has no device for this library's memory",
                hint="open the adapter's device first: `open_device` makes it known to torch",
            ) from error
        raise
    return tensor


def _check(library: Library, given: abi.ManagedTensor, size: int, device_id: int) -> None:
    """Refuses memory that torch would take for something else."""
    tensor = given.tensor
    seen = (tensor.device_type, tensor.device_id, tensor.code, tensor.bits, tensor.lanes)
    one_dim = tensor.ndim == 1 and bool(tensor.shape)
    if not given.deleter:
        raise DeviceError(
            f"{library.path.name}: allocate gives memory without a deleter",
            hint="report it to the library's vendor",
        )
    if seen != (abi.DL_EXT_DEV, device_id, 1, 8, 1) or not one_dim or tensor.shape[0] != size:
        shape = [tensor.shape[i] for i in range(tensor.ndim)] if one_dim else tensor.ndim
        raise DeviceError(
            f"{library.path.name}: allocate was asked for uint8[{size}] on device {device_id} "
            f"and gives a tensor of shape {shape}, device (type {tensor.device_type}, id "
            f"{tensor.device_id}), dtype (code {tensor.code}, bits {tensor.bits}, lanes "
            f"{tensor.lanes})",
            hint="report it to the library's vendor; vllm_adapter.h says what allocate gives",
        )
