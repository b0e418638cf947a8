"""Rows by number, filling, and joining of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, Final

import torch

from vllm_adapter.c_abi import abi
from vllm_adapter.engine.runtime.device_from_clib.calls import (
    CODES,
    RAW,
    Operand,
    merged_stride,
    operand,
)
from vllm_adapter.engine.runtime.device_from_clib.native import (
    NUMBERS,
    Native,
    NativeKernels,
    Number,
    Table,
    fit,
)

aten: Final = torch.ops.aten
_INTEGERS: Final = (torch.int64, torch.int32)


class Indexing:
    """Kernels that move elements, and the operators that they serve."""

    def __init__(self, native: Native) -> None:
        self._native = native

    def parts(self) -> list[NativeKernels]:
        """The kernels of this file by operator, with the functions that they are made of."""
        by_number: Table = {
            aten.index_select.default: self._index_select,
            aten.index.Tensor_out: self._index,
            aten._index_put_impl_.default: self._index_put,
            aten.index_copy.out: self._index_copy,
        }
        filling: Table = {
            aten.fill_.Scalar: self._fill,
            aten.fill_.Tensor: self._fill_tensor,
            aten.zero_.default: self._zero,
            aten.arange.start_out: self._arange,
        }
        return [
            # Several indices become one by arithmetic on them.
            NativeKernels(("index", "binary", "unary", "fill"), by_number),
            NativeKernels(("gather",), {aten.gather.out: self._gather}),
            NativeKernels(("unary",), {aten.cat.out: self._cat}),
            NativeKernels(("fill",), filling),
        ]

    # -- rows by number --------------------------------------------------------------------------

    def _index_select(self, x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
        if not x.dim():
            return NotImplemented
        shape = list(x.shape)
        shape[dim] = index.numel()
        out = self._native.backend.empty(shape, x.dtype, x.get_device())
        done = self._rows(moved(x), dim % x.dim(), index, moved(out), scatter=False)
        return out if done else NotImplemented

    def _index(self, x: torch.Tensor, indices: Sequence[Any], *, out: torch.Tensor) -> Any:
        found = self._only(x, indices) if out.device == x.device else None
        if found is None:
            return NotImplemented
        rows, dim, index = found
        if not fit(out, (*rows.shape[:dim], *index.shape, *rows.shape[dim + 1 :])).is_contiguous():
            return NotImplemented
        target = moved(out.view(*rows.shape[:dim], index.numel(), *rows.shape[dim + 1 :]))
        return out if self._rows(rows, dim, index, target, scatter=False) else NotImplemented

    def _index_put(
        self,
        x: torch.Tensor,
        indices: Sequence[Any],
        values: torch.Tensor,
        accumulate: bool = False,
        unsafe: bool = False,
    ) -> Any:
        if accumulate:
            return NotImplemented
        if len(indices) == 1 and indices[0].dtype == torch.bool and values.numel() == 1:
            mask = indices[0]
            mask = mask.view(*mask.shape, *(1,) * (x.dim() - mask.dim()))
            return x.masked_fill_(mask, values.view(()))
        if len(indices) > 1 and not x.is_contiguous():  # its dimensions may not become one
            dense = self._native.copies.contiguous(x)
            if self._index_put(dense, indices, values) is NotImplemented:
                return NotImplemented
            self._native.copies.on_device(dense, x)
            return x
        found = self._only(x, indices)
        if found is None:
            return NotImplemented
        rows, dim, index = found
        head, rest = rows.shape[:dim], rows.shape[dim + 1 :]
        values = values.to(x.device, x.dtype).expand(*head, *index.shape, *rest)
        if index.dim() != 1:
            flat = (*head, index.numel(), *rest)
            values = self._native.copies.contiguous(values).view(flat)
        return x if self._rows(rows, dim, index, moved(values), scatter=True) else NotImplemented

    def _index_copy(
        self, x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, out: Any
    ) -> Any:
        if not x.dim() or x.dtype != source.dtype or x.device != source.device:
            return NotImplemented
        if fit(out, x.shape).device != x.device:
            return NotImplemented
        if out.data_ptr() != x.data_ptr():
            self._native.copies.on_device(x, out)
        done = self._rows(moved(out), dim % x.dim(), index, moved(source), scatter=True)
        return out if done else NotImplemented

    def _rows(
        self, x: Operand, dim: int, index: torch.Tensor, rows: Operand, *, scatter: bool
    ) -> bool:
        """rows[.., i, ..] = x[.., index[i], ..] over one dimension, or the other way round."""
        if index.dtype not in _INTEGERS or len(x.shape) > abi.MAX_DIMS:
            return False
        order = (dim, *(d for d in range(len(x.shape)) if d != dim))
        numbers = operand(self._native.copies.contiguous(index))
        numbers = numbers._replace(shape=(index.numel(),), strides=(1,))
        rows = rows.ordered(*order)
        if not prod(rows.shape):
            return True
        return self._native.queue("index", int(scatter), rows, x.ordered(*order), numbers)

    def _only(
        self, x: torch.Tensor, indices: Sequence[Any]
    ) -> tuple[Operand, int, torch.Tensor] | None:
        """x, one of its dimensions, and the index into it.

        x: [...]; indices: integers [...], broadcast to one shape.

        Indices into several dimensions in a row become one into those taken as one; None where
        there is a mask, or a gap between them.
        """
        at = [d for d, index in enumerate(indices) if index is not None]
        first, count = at[0], len(at)
        if at[-1] - first + 1 != count or any(indices[d].dtype not in _INTEGERS for d in at):
            return None
        chosen = [indices[d].to(x.device) for d in at]
        if count == 1:
            return moved(x), first, chosen[0]
        extents = x.shape[first : first + count]
        total = prod(extents)
        rows = moved(x)
        stride = merged_stride(
            list(zip(extents, rows.strides[first : first + count], strict=True))
        )
        if not total:
            return None
        if stride is None:
            rows, stride = moved(self._native.copies.contiguous(x)), prod(x.shape[first + count :])
        after = first + count
        rows = rows._replace(
            shape=(*rows.shape[:first], total, *rows.shape[after:]),
            strides=(*rows.strides[:first], stride, *rows.strides[after:]),
        )
        return rows, first, _joined(chosen, extents, total)

    def _gather(
        self,
        x: torch.Tensor,
        dim: int,
        index: torch.Tensor,
        *,
        sparse_grad: bool = False,
        out: torch.Tensor,
    ) -> Any:
        if not x.dim() or x.dim() > abi.MAX_DIMS or index.dtype not in _INTEGERS:
            return NotImplemented
        if index.dim() != x.dim() or not x.device == index.device == out.device:
            return NotImplemented
        fit(out, index.shape)
        dim %= x.dim()
        order = (*(d for d in range(x.dim()) if d != dim), dim)
        given = moved(x)
        # The index may be smaller elsewhere, too: then only that part of x is looked at.
        shape = (*index.shape[:dim], x.shape[dim], *index.shape[dim + 1 :])
        parts = (moved(out), given._replace(shape=shape), operand(index))
        done = self._native.queue("gather", 0, *(part.ordered(*order) for part in parts))
        return out if done else NotImplemented

    # -- joining ---------------------------------------------------------------------------------

    def _cat(self, tensors: Sequence[torch.Tensor], dim: int = 0, *, out: torch.Tensor) -> Any:
        if any(tensor.device != out.device for tensor in tensors):
            return NotImplemented
        # torch lets a tensor of shape [0] join any others.
        tensors = [t for t in tensors if t.dim() != 1 or t.numel()] or tensors[:1]
        first, start = tensors[0], 0
        dim %= max(first.dim(), 1)
        length = sum(tensor.shape[dim] for tensor in tensors)
        fit(out, (*first.shape[:dim], length, *first.shape[dim + 1 :]))
        for tensor in tensors:
            length = tensor.shape[dim]
            self._native.copies.on_device(tensor, out.narrow(dim, start, length))
            start += length
        return out

    # -- filling ---------------------------------------------------------------------------------

    def _fill(self, x: torch.Tensor, value: Any) -> Any:
        if not isinstance(value, NUMBERS):
            return NotImplemented
        return x if self._native.fill(x, value) else NotImplemented

    def _fill_tensor(self, x: torch.Tensor, value: torch.Tensor) -> Any:
        if value.device.type == "cpu":
            return self._fill(x, value.item())
        self._native.copies.on_device(value, x)
        return x

    def _zero(self, x: torch.Tensor) -> Any:
        raw = RAW.get(x.element_size())
        if raw is None:
            return NotImplemented
        # By bytes: 0 is the same in all dtypes, also in those that the chip has not.
        numbers = bytes(32)
        code = CODES[raw]
        return (
            x
            if self._native.queue("fill", 0, operand(x, code).distinct(), more=numbers)
            else NotImplemented
        )

    def _arange(self, start: Number, end: Number, step: Number = 1, *, out: torch.Tensor) -> Any:
        if not step or (end - start) * step < 0:
            return NotImplemented  # torch has an error for it
        if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
            length = -((start - end) // step)
        else:
            length = ceil((float(end) - float(start)) / float(step))
        length = max(0, length)
        if out.numel() != length:
            out.resize_((length,))
        if out.dim() != 1:
            return NotImplemented
        return out if self._native.fill(out, start, step) else NotImplemented


def moved(tensor: torch.Tensor) -> Operand:
    """A tensor that is moved, not computed with: by its bytes where the ABI has no such dtype."""
    return operand(tensor, CODES.get(tensor.dtype, CODES[RAW[tensor.element_size()]]))


def _joined(indices: Sequence[torch.Tensor], extents: Sequence[int], total: int) -> torch.Tensor:
    """One index into dimensions taken as one. What is outside of its own extent stays outside.

    indices: integers [...] of one shape, one for each of `extents`, in elements.

    For an index in [-extent, extent) the quotient is -1 or 0, so that q (q + 1) is 0; for any
    other it is positive.
    """
    joined: Any = 0
    for index, extent in zip(indices, extents, strict=True):
        wide = index.to(torch.int64)
        quotient = wide // extent
        outside = quotient * (quotient + 1) * total
        joined = joined * extent + (wide - quotient * extent) + outside * total
    result: torch.Tensor = joined
    return result
