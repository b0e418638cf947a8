"""Products of matrices over the library's matmul and linear."""

from __future__ import annotations

from typing import Any, Final

import torch

from vllm_adapter.engine.runtime.device_from_clib.arithmetic import Arithmetic
from vllm_adapter.engine.runtime.device_from_clib.calls import CODES, Operand, operand
from vllm_adapter.engine.runtime.device_from_clib.native import (
    Native,
    NativeKernels,
    Number,
    Table,
    fit,
)

aten: Final = torch.ops.aten


class Matrices:
    """Multiplying kernels, and the operators that they serve."""

    def __init__(self, native: Native, elementwise: Arithmetic) -> None:
        self._native = native
        self._elementwise = elementwise

    def parts(self) -> list[NativeKernels]:
        """The kernels of this file by operator, with the functions that they are made of."""
        products: Table = {aten.mm.out: self._product, aten.bmm.out: self._product}
        sums: Table = {aten.addmm.out: self._sum, aten.baddbmm.out: self._sum}
        return [
            NativeKernels(("matmul",), products),
            NativeKernels(("matmul", "binary", "unary"), sums),
        ]

    def _product(self, x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor) -> Any:
        if not (x.dtype == y.dtype == out.dtype and x.dtype in CODES):
            return NotImplemented
        if not x.device == y.device == out.device:
            return NotImplemented
        fit(out, (*x.shape[:-1], y.shape[-1]))
        parts = [_batched(operand(t)) for t in (out, x, y)]
        return out if self._native.queue("matmul", 0, *parts) else NotImplemented

    def _sum(
        self,
        base: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        *,
        beta: Number = 1,
        alpha: Number = 1,
        out: torch.Tensor,
    ) -> Any:
        """out = beta * base + alpha * (x @ y); x: [..., rows, k], y: [..., k, columns].

        base: broadcast to [..., rows, columns].
        """
        if beta == alpha == 1 and self._linear(base, x, y, out):
            return out
        made = self._native.empty_like(fit(out, (*x.shape[:-1], y.shape[-1])))
        if beta not in (0, 1) or self._product(x, y, out=made) is NotImplemented:
            return NotImplemented
        if beta:
            return self._elementwise.binary("add", base, made, alpha=alpha, out=out)
        return self._elementwise.binary("mul", made, alpha, out=out)

    def _linear(
        self, bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor
    ) -> bool:
        if x.dim() != 2 or bias.dim() != 1 or bias.shape[0] != y.shape[1]:
            return False
        if not (bias.dtype == x.dtype == y.dtype == out.dtype and x.dtype in CODES):
            return False
        if not bias.device == x.device == y.device == out.device:
            return False
        fit(out, (x.shape[0], y.shape[1]))
        weight = operand(y).ordered(1, 0)
        return self._native.queue("linear", 0, operand(out), operand(x), weight, operand(bias))


def _batched(matrix: Operand) -> Operand:
    if len(matrix.shape) == 3:
        return matrix
    return matrix._replace(shape=(1, *matrix.shape), strides=(0, *matrix.strides))
