"""What kernels need to know of a device before a launch."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

INTERPRETER_UNITS: Final = 2
"""Of the host, where Triton's interpreter stands in for a device."""


@functools.lru_cache
def compute_units(device: torch.device) -> int:
    """Multiprocessors, compute units or Xe cores of the live device."""
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or module is None:
        return INTERPRETER_UNITS
    properties = module.get_device_properties(device)
    for name in ("multi_processor_count", "max_compute_units", "gpu_subslice_count"):
        if hasattr(properties, name):
            return int(getattr(properties, name))
    return INTERPRETER_UNITS


def next_power_of_2(number: int) -> int:
    """The least power of two that is not below a number from 1 on."""
    return 1 << (number - 1).bit_length()


def to_device(table: NDArray[np.int32], place: torch.Tensor) -> None:
    """Copies table[...] to place[...], int32 on a device, in the order of the current stream."""
    host = torch.from_numpy(table)
    if place.device.type != "cpu":
        # Pinned memory is kept by torch until the copy is done.
        host = host.pin_memory(place.device)
    place.copy_(host, non_blocking=True)
