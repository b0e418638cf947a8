"""What the kernels of a device share: library, streams, policy, counter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.runtime.device_from_clib import storage
from vllm_adapter.engine.runtime.device_from_clib.calls import Kernels, Operand, few
from vllm_adapter.engine.runtime.device_from_clib.coverage import Coverage
from vllm_adapter.engine.runtime.device_from_clib.streams import DeviceStreams
from vllm_adapter.settings import Fallback


class Backend:
    """One library that is a torch device.

    `policy` says what happens to aten operators that the library has no kernel for, and may be
    set at any time; `coverage` counts them.
    """

    def __init__(self, name: str, library: Library, policy: Fallback) -> None:
        self.name = name
        self.library = library
        self.policy = policy
        self.coverage = Coverage()
        self.streams = DeviceStreams(library, name)
        self.kernels = Kernels(library)
        self.peaks = Peaks()

    def empty(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: int,
        strides: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """A tensor in fresh memory; contiguous unless strides are given.

        Gives [*shape]; strides are in elements.
        """
        return storage.empty(self.library, shape, dtype, device, strides)

    def dtypes(self, device: int) -> set[torch.dtype]:
        """Those that some operator of the library has a kernel for."""
        found = ctypes.c_uint64()
        every = 0
        for op in range(len(abi.OPERATORS)):
            self.library.call("operator_dtypes", device, op, ctypes.byref(found))
            every |= found.value
        return {getattr(torch, name) for name, bit in abi.DTYPES.items() if every >> bit & 1}

    def synchronize(self, device: int) -> None:
        """Waits for every stream of a device that this process made.

        Raises:
            DeviceError: work of one failed since its last synchronise; all have been waited for.
        """
        self.streams.synchronize(device)

    def queue(self, name: str, word: int, *operands: Operand, more: bytes = b"") -> bool:
        """Queues an operator on the current stream; False where the library has no kernel.

        `word` is its kind or flag, `more` the packed rest of its arguments. Operands of more
        dimensions than the library takes have to be of one shape, and the operator elementwise.
        """
        stream = self.streams.handle(operands[0].device)
        return all(
            self.kernels.queue(name, stream, word, *(o.packed() for o in part), more)
            for part in few(operands)
        )


class Peaks:
    """The most bytes held since a reset, which the C ABI does not have."""

    def __init__(self) -> None:
        self._at_reset: dict[int, int] = {}

    def reset(self, device: int, peak: int) -> None:
        """Remembers the library's peak at the reset."""
        self._at_reset[device] = peak

    def since_reset(self, device: int, allocated: int, peak: int) -> int:
        """The library's peak where it is of after the reset, else what is held now."""
        return peak if peak > self._at_reset.get(device, 0) else allocated
