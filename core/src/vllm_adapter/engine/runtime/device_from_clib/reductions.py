"""Reductions over any dimensions, by the library's over the last one."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, Final

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.engine.runtime.device_from_clib.calls import Operand, merged_stride, operand
from vllm_adapter.engine.runtime.device_from_clib.native import (
    Kernel,
    Native,
    NativeKernels,
    Number,
    fit,
)
from vllm_adapter.engine.runtime.device_from_clib.storage import contiguous_strides

aten: Final = torch.ops.aten
_SUMS: Final = ("sum", "mean")
_EMPTY: Final = ("sum", "all", "any")
"""Reductions that have a value over nothing."""


class Reductions:
    """Reducing kernels, and the operators that they serve."""

    def __init__(self, native: Native) -> None:
        self._native = native

    def parts(self) -> list[NativeKernels]:
        """The kernels of this file by operator, with the functions that they are made of."""
        reduce, all_of = self._reduce, self._all_of
        table: dict[Any, Kernel] = {
            aten.sum.IntList_out: partial(reduce, "sum"),
            aten.mean.out: partial(reduce, "mean"),
            aten.amax.out: partial(reduce, "amax"),
            aten.amin.out: partial(reduce, "amin"),
            aten.argmax.out: partial(reduce, "argmax"),
            aten.argmin.out: partial(reduce, "argmin"),
            aten.max.default: partial(all_of, "amax"),
            aten.min.default: partial(all_of, "amin"),
            aten.max.dim_max: partial(self._with_index, "amax", "argmax", "max", "max_values"),
            aten.min.dim_min: partial(self._with_index, "amin", "argmin", "min", "min_indices"),
            aten.cumsum.out: partial(self._along, "cumsum"),
            aten._softmax.out: self._softmax,
        }
        for name in ("all", "any"):
            packet = getattr(aten, name)
            for overload in ("out", "dims_out", "all_out"):
                table[getattr(packet, overload)] = partial(reduce, name)
        return [
            NativeKernels(("reduce", "unary"), table),
            NativeKernels(
                ("reduce", "binary", "unary", "fill"),
                {aten.isin.Tensor_Tensor_out: self._isin, aten.equal.default: self._equal},
            ),
        ]

    def _reduce(
        self,
        kind: str,
        x: torch.Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        out: torch.Tensor,
    ) -> Any:
        """out = the reduction over `dim`: a number, numbers, or all where none is named.

        x: [...] -> out: without the dimensions `dim`, or with 1 in their place.
        """
        if dim is None or (kind not in ("all", "any") and dim == []):  # none of them: all of them
            dim = range(x.dim())
        wanted = [dim] if isinstance(dim, int) else list(dim)
        over = sorted({d % max(x.dim(), 1) for d in wanted}) if x.dim() else []
        if kind in _SUMS and x.dtype != out.dtype:
            x = self._native.copies.cast(x, out.dtype)
        kept = [d for d in range(x.dim()) if d not in over]
        remaining = (n if d in kept else 1 for d, n in enumerate(x.shape))
        fit(out, tuple(remaining) if keepdim else tuple(x.shape[d] for d in kept))
        if kind not in _EMPTY and not prod(x.shape[d] for d in over):
            return NotImplemented
        given = self._native.given(x, x.dtype, x.shape, out.get_device())
        if given is None or x.dtype.is_complex:
            return NotImplemented
        rows = self._rows(x, given, kept, over)

        def work(target: Operand) -> bool:
            if len(target.shape) != len(kept):
                target = target.ordered(*kept)  # keepdim
            if len(rows.shape) != len(kept) + 1:  # too many dimensions to be kept apart
                if target.strides != contiguous_strides(target.shape):
                    return False
                target = target._replace(shape=rows.shape[:1], strides=(1,))
            return self._native.queue("reduce", abi.REDUCE.index(kind), target, rows)

        return out if self._native.into(out, _result(kind, out.dtype), work) else NotImplemented

    def _rows(self, x: torch.Tensor, given: Operand, kept: list[int], over: list[int]) -> Operand:
        """x with what is reduced as its last dimension, copied if its strides do not merge.

        x: [...] -> [*kept, prod(over)].
        """
        length = prod(x.shape[d] for d in over)
        head = given.ordered(*kept)
        if len(kept) < abi.MAX_DIMS:
            stride = merged_stride([(x.shape[d], given.strides[d]) for d in over])
            if stride is not None:
                shape, strides = (*head.shape, length), (*head.strides, stride)
                return given._replace(shape=shape, strides=strides)
        dense = self._native.copies.contiguous(x.permute(*kept, *over))
        shape = (*head.shape, length)
        if len(shape) > abi.MAX_DIMS:
            shape = (prod(head.shape), length)
        return operand(dense)._replace(shape=shape, strides=contiguous_strides(shape))

    def _isin(
        self,
        elements: torch.Tensor,
        tested: torch.Tensor,
        *,
        assume_unique: bool = False,
        invert: bool = False,
        out: torch.Tensor,
    ) -> Any:
        """Compares all with all: the tested are few, such as the tokens that end a sentence.

        elements: [...], tested: [count] -> out: bool [...].
        """
        if tested.dim() > 1 or elements.dim() >= abi.MAX_DIMS or out.dtype != torch.bool:
            return NotImplemented
        pairs = elements.unsqueeze(-1) == tested.view(-1)
        found = pairs.any(-1)
        self._native.copies.on_device(~found if invert else found, fit(out, elements.shape))
        return out

    def _equal(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        if x.device != y.device:
            return NotImplemented
        return x.shape == y.shape and not (x != y).any().item()

    def _all_of(self, kind: str, x: torch.Tensor) -> Any:
        out = self._native.backend.empty((), x.dtype, x.get_device())
        return self._reduce(kind, x, out=out)

    def _with_index(
        self,
        kind: str,
        index_kind: str,
        value_name: str,
        index_name: str,
        x: torch.Tensor,
        dim: int,
        keepdim: bool = False,
        **out: torch.Tensor,
    ) -> Any:
        value, index = out[value_name], out[index_name]
        if self._reduce(index_kind, x, dim, keepdim, out=index) is NotImplemented:
            return NotImplemented
        if self._reduce(kind, x, dim, keepdim, out=value) is NotImplemented:
            return NotImplemented
        return value, index

    def _along(
        self,
        kind: str,
        x: torch.Tensor,
        dim: int,
        *,
        dtype: torch.dtype | None = None,
        out: torch.Tensor,
    ) -> Any:
        """A reduction whose result has x's shape.

        x: [...] -> [...].
        """
        native = self._native
        if not x.dim() or x.dim() > abi.MAX_DIMS:
            return NotImplemented
        given = native.given(x, out.dtype, fit(out, x.shape).shape, out.get_device())
        if given is None:
            return NotImplemented
        dim %= x.dim()
        order = [*(d for d in range(x.dim()) if d != dim), dim]

        def work(target: Operand) -> bool:
            word = abi.REDUCE.index(kind)
            return native.queue("reduce", word, target.ordered(*order), given.ordered(*order))

        return out if native.into(out, out.dtype, work) else NotImplemented

    def _softmax(
        self, x: torch.Tensor, dim: int, half_to_float: Number, *, out: torch.Tensor
    ) -> Any:
        return self._along("softmax", x, dim, out=out)


def _result(kind: str, out: torch.dtype) -> torch.dtype:
    if kind in ("argmax", "argmin"):
        return torch.int64
    return torch.bool if kind in ("all", "any") else out
