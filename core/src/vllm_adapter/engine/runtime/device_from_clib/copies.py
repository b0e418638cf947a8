"""Copies: between host and device, between devices, and between dtypes and strides on one.

A copy to the host has arrived when the call returns. A copy from the host has, too, unless it is
`non_blocking`: then the bytes are taken first, so that the caller may write them at once, and the
stream keeps them until it has passed the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.calls import CODES, RAW, operand

aten: Final = torch.ops.aten
_COPY: Final = 0


class Copies:
    """The copying kernels of a backend. `fallback(op, *args)` runs an operator on the host."""

    def __init__(self, backend: Backend, fallback: Callable[..., Any]) -> None:
        self._backend = backend
        self._fallback = fallback

    def kernels(self) -> Mapping[torch._ops.OpOverload, Callable[..., Any]]:
        """The kernels of this file by operator."""
        return {
            aten._copy_from.default: self.copy,
            aten._copy_from_and_resize.default: self._copy_and_resize,
            aten._to_copy.default: _to_copy,
            aten._local_scalar_dense.default: self._item,
        }

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous CPU tensor with the elements of a tensor on the device.

        tensor: [...] -> [...], the same shape and dtype.
        """
        dense = self.contiguous(tensor)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        self.download(dense.data_ptr(), host, tensor.get_device())
        return host

    def download(self, address: int, host: torch.Tensor, device: int) -> None:
        """Fills a contiguous CPU tensor from device memory, and waits for it.

        host: [...]; `address` in bytes, of host.nbytes there.
        """
        if not host.nbytes:
            return
        backend = self._backend
        stream = backend.streams.get(device)
        backend.library.call(
            "copy_to_host", device, stream.handle, host.data_ptr(), address, host.nbytes
        )
        stream.synchronize()

    def upload(self, host: torch.Tensor, address: int, device: int, *, wait: bool = True) -> None:
        """Fills device memory from a contiguous CPU tensor, which nobody writes if not waited.

        host: [...]; `address` in bytes, of host.nbytes there.
        """
        if not host.nbytes:
            return
        backend = self._backend
        stream = backend.streams.get(device)
        if not wait:
            stream.hold(host)
        backend.library.call(
            "copy_to_device", device, stream.handle, address, host.data_ptr(), host.nbytes
        )
        if wait:
            stream.synchronize()

    def contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or a contiguous copy of it on its device.

        tensor: [...] of any strides -> [...].
        """
        if tensor.is_contiguous():
            return tensor
        made = self._backend.empty(tensor.shape, tensor.dtype, tensor.get_device())
        self.on_device(tensor, made)
        return made

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor itself, or a contiguous copy of it in another dtype.

        tensor: [...] -> [...], the same shape.
        """
        if tensor.dtype == dtype:
            return tensor
        made = self._backend.empty(tensor.shape, dtype, tensor.get_device())
        self.on_device(tensor, made)
        return made

    def copy(
        self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        """Every `copy_` in which the device takes part; `source` is broadcast.

        target: [...]; source: any shape that broadcasts to it.
        """
        if any(t.is_conj() or t.is_neg() for t in (source, target)):
            self._fallback(aten.copy_.default, target, source)
        elif source.device.type != self._backend.name:  # of a third kind: by way of the host
            self._from_host(source.cpu(), target, wait=not non_blocking)
        elif target.device.type != self._backend.name:
            if source.dtype == target.dtype and source.shape == target.shape:
                dense = self.contiguous(source)
                if target.is_contiguous() and target.device.type == "cpu":
                    self.download(dense.data_ptr(), target, source.get_device())
                    return target
            target.copy_(self.to_host(source))
        elif source.device != target.device:
            self._between_devices(self.cast(source, target.dtype), target)
        else:
            self.on_device(source, target)
        return target

    def on_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies within one device, between any dtypes and strides; `source` is broadcast.

        target: [...]; source: any shape that broadcasts to it.
        """
        if not target.numel():
            return
        if source.shape != target.shape:
            source = source.expand(target.shape)
        if _overlap(source, target):
            source = self.cast(source.clone(), target.dtype)
        if source.dtype == target.dtype:
            if source.is_contiguous() and target.is_contiguous():
                self._bytes(source, target)
                return
            if not self._same_dtype(source, target):
                self._fallback(aten.copy_.default, target, source)
        elif not (
            source.dtype in CODES
            and target.dtype in CODES
            and self._backend.queue("unary", _COPY, operand(target), operand(source))
        ):
            self._fallback(aten.copy_.default, target, source)

    def _same_dtype(self, source: torch.Tensor, target: torch.Tensor) -> bool:
        """By their bytes, so that a dtype which the chip has not is copied all the same.

        source, target: [...], one shape.
        """
        raw = RAW.get(source.element_size())
        if raw is None:  # two words each
            return self._same_dtype(torch.view_as_real(source), torch.view_as_real(target))
        code = CODES[raw]
        return self._backend.queue("unary", _COPY, operand(target, code), operand(source, code))

    def _bytes(self, source: torch.Tensor, target: torch.Tensor) -> None:
        here, there = source.get_device(), target.get_device()
        self._backend.library.call(
            "copy_on_device",
            *(self._backend.streams.handle(there), there, target.data_ptr()),
            *(here, source.data_ptr(), target.nbytes),
        )

    def _from_host(self, source: torch.Tensor, target: torch.Tensor, *, wait: bool) -> None:
        host = source.to(target.dtype).contiguous()
        index = target.get_device()
        dense = target.is_contiguous() and host.shape == target.shape
        if not wait and host.data_ptr() == source.data_ptr():
            host = host.clone()
        stage = target if dense else self._backend.empty(host.shape, target.dtype, index)
        self.upload(host, stage.data_ptr(), index, wait=wait)
        if not dense:
            self.on_device(stage, target)

    def _between_devices(self, source: torch.Tensor, target: torch.Tensor) -> None:
        streams = self._backend.streams
        if source.shape != target.shape:
            source = source.expand(target.shape)
        dense = self.contiguous(source)
        index = target.get_device()
        stage = target
        if not target.is_contiguous():
            stage = self._backend.empty(target.shape, target.dtype, index)
        if not stage.nbytes:
            return
        # The copy is ordered on the target's stream alone: its source has to be written before,
        # and must not be given back, which waits for its own device's work only, until it is read.
        streams.get(source.get_device()).synchronize()
        self._bytes(dense, stage)
        streams.get(index).synchronize()
        if stage is not target:
            self.on_device(stage, target)

    def _copy_and_resize(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.copy(source, target.resize_(source.shape))

    def _item(self, tensor: torch.Tensor) -> Any:
        return self.to_host(tensor).item()


def _to_copy(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """What `to` does; torch's own pins memory for a copy to the host that is not waited for.

    We have no pinned memory, and a copy to the host is waited for anyway.

    # upstream: pytorch@2.13 aten/src/ATen/native/TensorConversions.cpp:340 (pin_out)
    """
    made = torch.empty_like(
        tensor,
        dtype=dtype or tensor.dtype,
        layout=layout or tensor.layout,
        device=device or tensor.device,
        pin_memory=pin_memory or False,
        memory_format=memory_format or torch.preserve_format,
    )
    return made.copy_(tensor, non_blocking=non_blocking)


def _overlap(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether a copy would read what it has written: two views of one storage that meet."""
    if source.untyped_storage().data_ptr() != target.untyped_storage().data_ptr():
        return False
    if source.dtype == target.dtype and source.data_ptr() == target.data_ptr():
        return source.stride() != target.stride()
    (a, b), (c, d) = span(source), span(target)
    return a < d and c < b


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one-past-last byte of its storage that a tensor touches."""
    if not tensor.numel():
        return 0, 0
    first = int(tensor.storage_offset())
    last = first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()
