"""Elementwise operators over the library's unary, binary and where."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.engine.runtime.device_from_clib.calls import NONE, Operand
from vllm_adapter.engine.runtime.device_from_clib.native import (
    NUMBERS,
    Kernel,
    Native,
    NativeKernels,
    Number,
    Table,
    broadcast,
    fit,
    floating,
    int_of,
    number_of,
)

aten: Final = torch.ops.aten
_NUMBERS: Final = struct.Struct("@ddq")
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_SYMMETRIC: Final = ("mul", "maximum", "minimum", "eq", "ne", "and", "or", "xor")
_MIRRORED: Final = {n: n for n in _SYMMETRIC} | {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""Kinds by the one that takes their arguments in the other order."""
_NUMERIC: Final = ("neg", "abs", "relu", "sub", "pow", "floor_divide", "remainder")
"""Kinds for which torch has an error where all is bool; the host raises it."""
_FLOATING: Final = frozenset(abi.UNARY[abi.UNARY.index("exp") : abi.UNARY.index("silu") + 1])
"""Unary kinds that are for floating tensors alone."""


class Arithmetic:
    """Elementwise kernels, and the operators that they serve."""

    def __init__(self, native: Native) -> None:
        self._native = native

    def parts(self) -> list[NativeKernels]:
        """The kernels of this file by operator, with the functions that they are made of."""
        return [
            NativeKernels(("unary",), self._of_one()),
            NativeKernels(("binary", "unary", "fill"), self._of_two()),
            NativeKernels(
                ("where", "unary", "fill"),
                {
                    aten.where.self: self._where,
                    aten.where.self_out: self._where_out,
                    aten.masked_fill_.Scalar: self._masked_fill,
                    aten.masked_fill_.Tensor: self._masked_fill,
                },
            ),
            NativeKernels(
                ("where", "binary", "unary", "fill"),
                {
                    aten.tril.out: partial(self._triangle, torch.le),
                    aten.triu.out: partial(self._triangle, torch.ge),
                },
            ),
        ]

    def _of_one(self) -> Table:
        table: dict[Any, Kernel] = {
            getattr(aten, name).out: partial(self._unary, name)
            for name in abi.UNARY
            if name not in ("copy", "relu")
        }
        return table | {
            aten.relu.default: lambda x: self._new(x, partial(self._unary, "relu", x)),
            aten.relu_.default: lambda x: self._unary("relu", x, out=x),
        }

    def _of_two(self) -> Table:
        table: dict[Any, Kernel] = {}
        for name in _COMPARISONS:
            for overload in ("Tensor_out", "Scalar_out"):
                table[getattr(getattr(aten, name), overload)] = partial(self._compare, name)
        for name in ("and", "or", "xor"):
            bitwise, logical = getattr(aten, f"bitwise_{name}"), getattr(aten, f"logical_{name}")
            table[bitwise.Tensor_out] = partial(self.binary, name)
            table[logical.out] = partial(self._logical, name)
        for name in ("add", "sub", "mul", "maximum", "minimum"):
            table[getattr(aten, name).out] = partial(self.binary, name)
        for overload in ("Tensor_Tensor_out", "Tensor_Scalar_out", "Scalar_out"):
            table[getattr(aten.pow, overload)] = partial(self.binary, "pow")
        return table | {
            aten.isnan.default: self._is_nan,
            aten.isneginf.out: partial(self._is_infinite, -inf),
            aten.isposinf.out: partial(self._is_infinite, inf),
            aten.bitwise_not.out: self._bitwise_not,
            aten.rsub.Tensor: self._reversed_sub,
            aten.reciprocal.out: lambda x, *, out: self.binary("div", 1, x, out=out),
            aten.div.out: partial(self.binary, "div"),
            aten.div.out_mode: self._div_mode,
            aten.floor_divide.default: self._floor_divide,
            aten.floor_divide.out: partial(self.binary, "floor_divide"),
            aten.floor_divide_.Tensor: lambda x, y: self.binary("floor_divide", x, y, out=x),
            aten.remainder.Tensor_out: partial(self.binary, "remainder"),
            aten.clamp.out: self._clamp,
        }

    # -- one tensor ------------------------------------------------------------------------------

    def _unary(self, kind: str, x: torch.Tensor, *, out: torch.Tensor) -> Any:
        if x.dtype == torch.bool and kind in _NUMERIC:
            return NotImplemented
        dtype = floating(x.dtype) if kind in _FLOATING else x.dtype
        given = self._native.given(x, dtype, fit(out, x.shape).shape, out.get_device())
        if given is None:
            return NotImplemented
        word = abi.UNARY.index(kind)

        def work(target: Operand) -> bool:
            return self._native.queue("unary", word, target, given)

        result = torch.bool if kind == "logical_not" else dtype
        return out if self._native.into(out, result, work) else NotImplemented

    def _bitwise_not(self, x: torch.Tensor, *, out: torch.Tensor) -> Any:
        if x.dtype == torch.bool:
            return self._unary("logical_not", x, out=out)
        return self.binary("xor", x, -1, out=out)

    # -- two tensors, or a tensor and a number ---------------------------------------------------

    def binary(
        self,
        kind: str,
        x: torch.Tensor | Number,
        y: torch.Tensor | Number,
        *,
        out: torch.Tensor,
        alpha: Number = 1,
        dtype: torch.dtype | None = None,
        result: torch.dtype | None = None,
    ) -> Any:
        """out = x kind y, computed in `dtype` (torch's for the two), which gives a `result`.

        x, y: tensors or numbers that broadcast to the shape of out, [...].
        """
        if not isinstance(alpha, NUMBERS):
            return NotImplemented
        if dtype is None:
            dtype = torch.result_type(x, y)
            dtype = floating(dtype) if kind == "div" else dtype
        if dtype.is_complex or (dtype == torch.bool and kind in _NUMERIC):
            return NotImplemented
        _fit(out, x, y)
        first, second = number_of(x), number_of(y)
        if first is not None and second is None and kind in _MIRRORED:
            x, y, first, second, kind = y, x, second, first, _MIRRORED[kind]
        native, shape, device = self._native, tuple(out.shape), out.get_device()
        left = native.given(x, dtype, shape, device)
        right = native.given(y, dtype, shape, device) if second is None else NONE
        if left is None or right is None:
            return NotImplemented
        value = 0 if second is None else second
        value = bool(value) if dtype == torch.bool else value
        numbers = _NUMBERS.pack(float(alpha), float(value), int_of(value))
        word = abi.BINARY.index(kind)

        def work(target: Operand) -> bool:
            if isinstance(right, Operand):
                return native.queue("binary", word, target, left, right, more=numbers)
            return native.queue("binary", word, target, left, more=NONE + numbers)

        return out if native.into(out, result or dtype, work) else NotImplemented

    def _compare(self, kind: str, x: Any, y: Any, *, out: torch.Tensor) -> Any:
        return self.binary(kind, x, y, out=out, result=torch.bool)

    def _is_nan(self, x: torch.Tensor) -> Any:
        out = self._native.empty_like(x, torch.bool)
        return self.binary("ne", x, x, out=out, result=torch.bool)

    def _is_infinite(self, value: float, x: torch.Tensor, *, out: torch.Tensor) -> Any:
        dtype = floating(x.dtype)
        return self.binary("eq", x, value, out=out, dtype=dtype, result=torch.bool)

    def _logical(self, kind: str, x: Any, y: Any, *, out: torch.Tensor) -> Any:
        return self.binary(kind, x, y, out=out, dtype=torch.bool)

    def _reversed_sub(self, x: torch.Tensor, y: torch.Tensor, alpha: Number = 1) -> Any:
        if torch.bool in (x.dtype, getattr(y, "dtype", type(y))) or isinstance(y, bool):
            return NotImplemented
        return self._new_of_two(y, x, partial(self.binary, "sub", y, x, alpha=alpha))

    def _div_mode(self, x: Any, y: Any, *, rounding_mode: str | None, out: torch.Tensor) -> Any:
        kind = {None: "div", "floor": "floor_divide"}.get(rounding_mode)
        return NotImplemented if kind is None else self.binary(kind, x, y, out=out)

    def _floor_divide(self, x: Any, y: Any) -> Any:
        return self._new_of_two(x, y, partial(self.binary, "floor_divide", x, y))

    def _clamp(
        self, x: torch.Tensor, min: Any = None, max: Any = None, *, out: torch.Tensor
    ) -> Any:
        if min is not None and max is not None:
            between = self._native.empty_like(out)
            if self.binary("maximum", x, min, out=between) is NotImplemented:
                return NotImplemented
            return self.binary("minimum", between, max, out=out)
        kind, bound = ("maximum", min) if max is None else ("minimum", max)
        return self.binary(kind, x, bound, out=out)

    # -- a choice of two -------------------------------------------------------------------------

    def _where(self, condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        device = max(t.get_device() for t in (condition, x, y))  # -1 is the host
        shape = broadcast(condition.shape, x.shape, y.shape)
        out = self._native.backend.empty(shape, torch.result_type(x, y), device)
        return self._where_out(condition, x, y, out=out)

    def _where_out(self, condition: torch.Tensor, x: Any, y: Any, *, out: torch.Tensor) -> Any:
        native, device = self._native, out.get_device()
        shape = tuple(_fit(out, condition, x, y).shape)
        if condition.dtype != torch.bool or condition.device != out.device:
            return NotImplemented
        chosen = native.given(condition, torch.bool, shape, device)
        left = native.given(x, out.dtype, shape, device)
        right = native.given(y, out.dtype, shape, device)
        if chosen is None or left is None or right is None:
            return NotImplemented

        def work(target: Operand) -> bool:
            return native.queue("where", 0, target, chosen, left, right)

        return out if native.into(out, out.dtype, work) else NotImplemented

    def _masked_fill(self, x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
        if isinstance(value, complex) or mask.device != x.device:
            return NotImplemented
        if broadcast(x.shape, mask.shape) != x.shape:
            return NotImplemented
        return self._where_out(mask, value, x, out=x)

    def _triangle(
        self,
        side: Callable[..., torch.Tensor],
        x: torch.Tensor,
        diagonal: int = 0,
        *,
        out: torch.Tensor,
    ) -> Any:
        if x.dim() < 2:
            return NotImplemented
        rows, columns = (torch.arange(n, device=x.device) for n in x.shape[-2:])
        kept = side(columns - rows.unsqueeze(-1), diagonal)
        return self._where_out(kept, x, 0, out=out)

    # -- results ---------------------------------------------------------------------------------

    def _new(self, like: torch.Tensor, work: Callable[..., Any]) -> Any:
        return work(out=self._native.empty_like(like))

    def _new_of_two(self, x: Any, y: Any, work: Callable[..., Any]) -> Any:
        tensors = [t for t in (x, y) if isinstance(t, torch.Tensor)]
        shape = broadcast(*(t.shape for t in tensors))
        device = max(t.get_device() for t in tensors)
        out = self._native.backend.empty(shape, torch.result_type(x, y), device)
        return work(out=out)


def _fit(out: torch.Tensor, *given: Any) -> torch.Tensor:
    """`out` with the shape that the tensors among the arguments broadcast to.

    Arguments: [...], broadcast by torch's rules.
    """
    shape = broadcast(*(t.shape for t in given if isinstance(t, torch.Tensor)))
    if out.shape != shape and any(t is out for t in given):  # in place
        raise RuntimeError(f"output of shape {out.shape} is not of the broadcast shape {shape}")
    return fit(out, shape)
