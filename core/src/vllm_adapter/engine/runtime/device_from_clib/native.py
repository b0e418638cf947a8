"""What the native kernels of a device share. They are one table a file: operator -> kernel.

A kernel answers NotImplemented where the library has none for the case, before it has written
anything; then the operator runs on the host, if the policy lets it.

Of a structured operator only the `out` form is given: torch makes the functional and the
in-place one of it. The in-place form of `sub.Tensor` alone would miss `x -= y`. Those two check
shapes and dtypes before; a program that passes `out` itself comes straight here: so every kernel
gives `out` its shape, and refuses a result that `out` cannot hold.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.calls import CODES, Operand, operand
from vllm_adapter.engine.runtime.device_from_clib.copies import Copies

Kernel = Callable[..., Any]
Table = Mapping[torch._ops.OpOverload, Kernel]
Number = bool | int | float


class NativeKernels(NamedTuple):
    """Kernels by operator, and the library's functions that they are made of.

    Each operator may need any of the functions: `unary` casts what has another dtype.
    """

    functions: tuple[str, ...]
    table: Table


NUMBERS: Final = (bool, int, float)
_FILL: Final = struct.Struct("@ddqq")


class Native:
    """The tensor work that kernels are made of. Each method gives False for "no kernel"."""

    def __init__(self, backend: Backend, copies: Copies) -> None:
        self.backend = backend
        self.copies = copies
        self.queue = backend.queue

    def empty_like(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A contiguous tensor of the shape on the same device.

        tensor: [...] -> [...].
        """
        return self.backend.empty(tensor.shape, dtype or tensor.dtype, tensor.get_device())

    def fill(self, out: torch.Tensor, value: Number, step: Number | None = None) -> bool:
        """out = value, or value + i * step over a one-dimensional out.

        out: [...], or [count] where there is a step.
        """
        if out.dtype not in CODES:
            return False
        value = bool(value) if out.dtype == torch.bool else value
        whole, whole_step = int_of(value), int_of(step or 0)
        numbers = _FILL.pack(float(value), float(step or 0), whole, whole_step)
        return self.queue("fill", int(step is not None), operand(out).distinct(), more=numbers)

    def given(
        self, x: torch.Tensor | Number, dtype: torch.dtype, shape: Sequence[int], device: int
    ) -> Operand | None:
        """A tensor or number as an operand of that dtype and shape; None: it cannot be one.

        Gives an operand of [*shape]; x broadcasts to it.
        """
        value = number_of(x)
        if value is not None:
            x = self.backend.empty((), dtype, device)
            if not self.fill(x, value):
                return None
        elif not isinstance(x, torch.Tensor) or x.get_device() != device:
            return None
        elif x.dtype != dtype:
            if dtype not in CODES or x.dtype not in CODES:
                return None
            x = self.copies.cast(x, dtype)
        elif dtype not in CODES:
            return None
        return operand(x).expanded(tuple(shape))

    def into(self, out: torch.Tensor, dtype: torch.dtype, work: Callable[[Operand], bool]) -> bool:
        """Lets `work` write a tensor of that dtype, and copies it to `out` if that has another.

        out: [...]; `work` gets a tensor of the same shape.
        """
        if dtype not in CODES:
            return False
        if out.dtype == dtype:
            return work(operand(out))
        if not torch.can_cast(dtype, out.dtype):
            raise RuntimeError(f"result type {dtype} can't be cast to the output's {out.dtype}")
        made = self.empty_like(out, dtype)
        if not work(operand(made)):
            return False
        self.copies.on_device(made, out)
        return True


Shape = tuple[int, ...]


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all of them broadcast to; RuntimeError, as torch's, where there is none."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    result = [1] * max(map(len, shapes))
    for shape in shapes:
        for d, extent in enumerate(shape, len(result) - len(shape)):
            if extent != 1 and result[d] not in (1, extent):
                raise RuntimeError(f"the shapes {', '.join(map(str, shapes))} do not broadcast")
            if extent != 1:
                result[d] = extent
    return tuple(result)


def fit(out: torch.Tensor, shape: Shape) -> torch.Tensor:
    """`out`, with that shape.

    out: any shape -> [*shape].
    """
    return out if out.shape == shape else out.resize_(shape)


def int_of(value: Number) -> int:
    """For the integer half of arguments; what no integer tensor can hold is 0."""
    try:
        return max(min(int(value), 2**63 - 1), -(2**63))
    except (OverflowError, ValueError):
        return 0


def number_of(x: Any) -> Number | None:
    """The number that an argument is, also as a tensor on the host; None: it is a device tensor.

    torch hands a kernel the number of `x + 1` as it is, and lets a host tensor of no dimension
    meet those of any device.
    """
    if isinstance(x, NUMBERS):
        return x
    if isinstance(x, torch.Tensor) and x.device.type == "cpu" and not x.dim():
        value = x.item()
        return value if isinstance(value, NUMBERS) else None
    return None


def floating(dtype: torch.dtype) -> torch.dtype:
    """What torch computes a floating function of this dtype in."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()
