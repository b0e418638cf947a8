"""Operators that give another view of the same memory, or another memory to the same tensor.

torch's CPU kernels for views only rewrite sizes, strides and offset, and keep the dispatch key of
their argument: they are right for any device. All other views (slices, transposes, splits, ...)
are made of these. A view that fell to the copying fallback would stop aliasing in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.storage import CPU, contiguous_strides
from vllm_adapter.errors import DeviceError

aten: Final = torch.ops.aten
VIEWS: Final = (
    aten.as_strided.default,
    aten.view.default,
    aten._reshape_alias.default,
    aten.unfold.default,
    aten.view_as_real.default,
    aten.view_as_complex.default,
)
_SET: Final = aten.set_.source_Storage_storage_offset


def kernels(backend: Backend) -> Mapping[torch._ops.OpOverload, Callable[..., Any]]:
    """The kernels of this file by operator."""

    def set_to(
        tensor: torch.Tensor,
        source: torch.UntypedStorage,
        offset: int,
        size: Sequence[int],
        stride: Sequence[int] = (),
    ) -> torch.Tensor:
        """tensor becomes [*size] over the storage; offset and stride in elements."""
        strides = stride or contiguous_strides(size)
        done: torch.Tensor = _SET._op_dk(CPU, tensor, source, offset, size, strides)
        return done

    def set_whole(tensor: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
        """tensor becomes [count] over the whole storage, in elements of its dtype."""
        return set_to(tensor, source, 0, [source.nbytes() // tensor.element_size()])

    def set_like(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """tensor becomes a view like source: [...], of the same storage."""
        storage = source.untyped_storage()
        offset = int(source.storage_offset())
        return set_to(tensor, storage, offset, source.shape, source.stride())

    def set_empty(tensor: torch.Tensor) -> torch.Tensor:
        """tensor becomes [0] of fresh storage."""
        return set_like(tensor, backend.empty([0], tensor.dtype, tensor.get_device()))

    def resize(
        tensor: torch.Tensor, size: Sequence[int], *, memory_format: Any = None
    ) -> torch.Tensor:
        """tensor becomes [*size], contiguous; its storage grows where that is too small."""
        storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
        need = (offset + prod(size)) * tensor.element_size() if prod(size) else 0
        if need > storage.nbytes():
            storage = _grown(backend, tensor, storage, need)
        strides = contiguous_strides(size)
        if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
            strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
        return set_to(tensor, storage, offset, size, strides)

    return {
        **{op: _on_cpu(op) for op in VIEWS},
        _SET: set_to,
        aten.set_.source_Storage: set_whole,
        aten.set_.source_Tensor: set_like,
        aten.set_.default: set_empty,
        aten.resize_.default: resize,
    }


def _on_cpu(op: torch._ops.OpOverload) -> Callable[..., Any]:
    def view(*arguments: Any, **options: Any) -> Any:
        return op._op_dk(CPU, *arguments, **options)

    return view


_HERE: Final = 2
"""References that `resize` itself and its tensor have to the storage."""


def _grown(
    backend: Backend, tensor: torch.Tensor, storage: torch.UntypedStorage, need: int
) -> torch.UntypedStorage:
    """A larger storage with the same bytes in front: torch grows none without an allocator."""
    used = storage.nbytes()
    if used and torch._C._storage_Use_Count(storage._cdata) > _HERE:
        raise DeviceError(
            f"resize_ would grow memory that other tensors share, from {used} to {need} bytes, "
            f"and a {backend.name} tensor cannot take its views along",
            hint="make a new tensor of the size, and copy",
        )
    index = tensor.get_device()
    fresh = backend.empty([need], torch.uint8, index)
    if used:
        backend.library.call(
            "copy_on_device",
            *(backend.streams.handle(index), index, fresh.data_ptr()),
            *(index, storage.data_ptr(), used),
        )
    return fresh.untyped_storage()
