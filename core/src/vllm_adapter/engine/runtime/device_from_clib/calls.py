"""Operators of a library, called with arguments packed by `struct`.

Packing costs a third of filling the fields of a ctypes structure one by one.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library

_TENSOR: Final = struct.Struct(f"@Piiii{2 * abi.MAX_DIMS}q")
_HEAD: Final = struct.Struct("@IiQ")
_ZEROS: Final = (0,) * abi.MAX_DIMS
CODES: Final = {getattr(torch, name): code for name, code in abi.DTYPES.items()}
"""va_dtype by torch's dtype; torch has dtypes beside these."""
RAW: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""A dtype that every chip can copy, by its bytes."""
NONE: Final = _TENSOR.pack(0, 0, 0, -1, 0, *_ZEROS, *_ZEROS)
"""The va_tensor that is "none"."""


class Operand(NamedTuple):
    """A view of device memory as the library sees it. Strides are in elements.

    It keeps its memory: what is released before the work is queued may be handed out again.
    """

    address: int
    device: int
    code: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: torch.Tensor

    def packed(self) -> bytes:
        """As va_tensor; there must be at most `abi.MAX_DIMS` dimensions."""
        pad = _ZEROS[len(self.shape) :]
        return _TENSOR.pack(
            *(self.address, self.device, self.code, len(self.shape), 0),
            *(*self.shape, *pad, *self.strides, *pad),
        )

    def expanded(self, shape: tuple[int, ...]) -> Operand:
        """Broadcast to `shape`, by strides of 0."""
        if shape == self.shape:
            return self
        missing = len(shape) - len(self.shape)
        strides = [0] * missing
        for extent, own, stride in zip(shape[missing:], self.shape, self.strides, strict=True):
            strides.append(stride if own == extent else 0)
        return self._replace(shape=shape, strides=tuple(strides))

    def distinct(self) -> Operand:
        """Without the elements that lie on others, for what writes one value to all."""
        if 0 not in self.strides:
            return self
        shape = (n if s else min(n, 1) for n, s in zip(self.shape, self.strides, strict=True))
        return self._replace(shape=tuple(shape))

    def ordered(self, *dims: int) -> Operand:
        """With its dimensions in another order, or without some of them."""
        return self._replace(
            shape=tuple(self.shape[d] for d in dims), strides=tuple(self.strides[d] for d in dims)
        )

    def row(self, k: int) -> Operand:
        """The k-th of its first dimension."""
        step = self.strides[0] * self.owner.element_size()
        return self._replace(
            address=self.address + k * step, shape=self.shape[1:], strides=self.strides[1:]
        )


def operand(tensor: torch.Tensor, code: int | None = None) -> Operand:
    """A tensor as the library sees it; its dtype has to be in CODES unless a code is given."""
    return Operand(
        tensor.data_ptr(),
        tensor.get_device(),
        CODES[tensor.dtype] if code is None else code,
        tuple(tensor.shape),
        tensor.stride(),
        tensor,
    )


def few(operands: tuple[Operand, ...]) -> list[tuple[Operand, ...]]:
    """Operands of one shape in parts whose dimensions the library can take."""
    if len(operands[0].shape) <= abi.MAX_DIMS:
        return [operands]
    operands = merged(operands)
    if len(operands[0].shape) <= abi.MAX_DIMS:
        return [operands]
    rows = [tuple(o.row(k) for o in operands) for k in range(operands[0].shape[0])]
    return [part for row in rows for part in few(row)]


def merged(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """The same elements in the same order, with as few dimensions as all strides allow."""
    shape: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for d, extent in enumerate(operands[0].shape):
        if extent == 1:
            continue
        own = [o.strides[d] for o in operands]
        if shape and all(s[-1] == n * extent for s, n in zip(strides, own, strict=True)):
            shape[-1] *= extent
            for s, n in zip(strides, own, strict=True):
                s[-1] = n
        else:
            shape.append(extent)
            for s, n in zip(strides, own, strict=True):
                s.append(n)
    return tuple(
        o._replace(shape=tuple(shape), strides=tuple(s))
        for o, s in zip(operands, strides, strict=True)
    )


def merged_stride(dims: Sequence[tuple[int, int]]) -> int | None:
    """The stride of dimensions, given as (extent, stride), taken as one; None: they cannot be."""
    wide = [(extent, stride) for extent, stride in dims if extent != 1]
    for (_, outer), (extent, inner) in pairwise(wide):
        if outer != extent * inner:
            return None
    return wide[-1][1] if wide else 1


class Kernels:
    """The operators of one library."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._known = {
            name: (function, ctypes.sizeof(arguments))
            for name, arguments in abi.ARGUMENTS.items()
            if (function := library.functions.get(name))
        }

    def queue(self, name: str, stream: int, word: int, *parts: bytes) -> bool:
        """Queues an operator; False where the library has no kernel for this case.

        `word` is the 32 bits after the size (a kind or a flag), `parts` what follows the stream.

        Raises:
            DeviceError: the library refused the arguments, or the device failed.
        """
        found = self._known.get(name)
        if found is None:
            return False
        if self._library.is_forked:
            raise self._library.error(abi.FORKED, name)
        function, size = found
        status = function(_HEAD.pack(size, word, stream) + b"".join(parts))
        if not status:
            return True
        if status == abi.UNSUPPORTED:
            return False
        raise self._library.error(status, name)
