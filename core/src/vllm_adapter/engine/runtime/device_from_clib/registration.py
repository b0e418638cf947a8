"""Which kernels torch calls for the device. Everything without one meets the fallback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.process_objects import process_object, stand_in
from vllm_adapter.engine.runtime.device_from_clib import views
from vllm_adapter.engine.runtime.device_from_clib.arithmetic import Arithmetic
from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.copies import Copies
from vllm_adapter.engine.runtime.device_from_clib.fallback import HostFallback
from vllm_adapter.engine.runtime.device_from_clib.indexing import Indexing
from vllm_adapter.engine.runtime.device_from_clib.matrices import Matrices
from vllm_adapter.engine.runtime.device_from_clib.native import Kernel, Native, NativeKernels
from vllm_adapter.engine.runtime.device_from_clib.reductions import Reductions
from vllm_adapter.engine.runtime.device_from_clib.scores import Scores
from vllm_adapter.engine.runtime.device_from_clib.storage import contiguous_strides
from vllm_adapter.errors import DeviceError

aten: Final = torch.ops.aten
KEY: Final = "PrivateUse1"


def _libraries() -> tuple[Any, Any]:
    new: Any = torch.library.Library  # torch has no types for it
    return new("aten", "IMPL"), new("_", "IMPL")


def register(backend: Backend) -> None:
    """Registers every kernel of the device with torch; once more, it takes the former's place."""
    fallback = HostFallback(backend)
    copies = Copies(backend, fallback)
    fallback.copies = copies
    # Kept, for dropping a torch.library.Library takes its kernels back.
    own, others = process_object("device libraries", _libraries)

    def implement(op: torch._ops.OpOverload, kernel: Kernel, key: str = KEY) -> None:
        registered = stand_in((op, key), kernel)
        if registered is not None:
            own.impl(op, registered, key)

    tables = (
        _factories(backend),
        views.kernels(backend),
        copies.kernels(),
        {
            # Memory is handed out again only when the work queued before its release has passed
            # it, on whichever stream: that is the ABI's rule for allocate. So nothing to record.
            aten.record_stream.default: lambda tensor, stream: None,
            # What aten::convolution comes to for a device that torch does not know.
            aten.convolution_overrideable.default: lambda *given: fallback(
                aten.convolution.default, *given
            ),
        },
    )
    for table in tables:
        for op, kernel in table.items():
            implement(op, kernel)
    for part in _natives(Native(backend, copies)):
        for op, kernel in part.table.items():
            implement(op, _or_on_host(op, kernel, fallback))
    boxed = stand_in(("fallback", KEY), fallback)
    if boxed is None:
        return
    # The bits of a lazy conjugate or negative are for `copy` to see: resolving them, as torch does
    # for an operator that it does not know, is a copy itself, and would come back for ever.
    for bit in ("Conjugate", "Negative"):
        own.impl(aten._copy_from.default, torch.library.fallthrough_kernel, bit)
    others.fallback(boxed, KEY)
    # Without it every operator inside torch.autocast(<our device>) fails.
    others.fallback(torch.library.fallthrough_kernel, f"Autocast{KEY}")


def kernels_by_function(backend: Backend) -> dict[str, set[torch._ops.OpOverload]]:
    """By each function of the ABI's plain tensor work: the operators that may need it.

    Where a library leaves the function NULL, these are what may run on the host.
    """
    found: dict[str, set[torch._ops.OpOverload]] = {"unary": {aten.copy_.default}}
    for functions, table in _natives(Native(backend, Copies(backend, HostFallback(backend)))):
        for name in functions:
            found.setdefault(name, set()).update(table)
    return found


def _natives(native: Native) -> list[NativeKernels]:
    elementwise = Arithmetic(native)
    files = (
        elementwise,
        Reductions(native),
        Indexing(native),
        Matrices(native, elementwise),
        Scores(native),
    )
    return [part for file in files for part in file.parts()]


def _or_on_host(op: torch._ops.OpOverload, kernel: Kernel, fallback: HostFallback) -> Kernel:
    def attempt(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        return fallback(op, *args, **kwargs) if result is NotImplemented else result

    return attempt


def _factories(backend: Backend) -> dict[torch._ops.OpOverload, Any]:
    def index_of(device: torch.device | None, pin_memory: bool | None) -> int:
        if pin_memory:
            raise DeviceError(
                f"a {backend.name} tensor cannot be pinned", hint="pin host tensors only"
            )
        return backend.streams.index(device)

    def empty_strided(
        size: Sequence[int],
        stride: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> torch.Tensor:
        """Gives [*size]; stride in elements."""
        kind = torch.get_default_dtype() if dtype is None else dtype
        return backend.empty(size, kind, index_of(device, pin_memory), stride)

    def empty(
        size: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: Any = None,
    ) -> torch.Tensor:
        """Gives [*size], contiguous."""
        strides: Sequence[int] = contiguous_strides(size)
        if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
            strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
        kind = torch.get_default_dtype() if dtype is None else dtype
        return backend.empty(size, kind, index_of(device, pin_memory), strides)

    return {aten.empty.memory_format: empty, aten.empty_strided.default: empty_strided}
