"""The boxed fallback: an operator without a kernel runs on host copies, if the policy lets it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from vllm_adapter.engine.runtime.device_from_clib.backend import Backend
from vllm_adapter.engine.runtime.device_from_clib.copies import Copies, span
from vllm_adapter.engine.runtime.device_from_clib.coverage import name_of
from vllm_adapter.errors import DeviceError, UnsupportedCase
from vllm_adapter.settings import Fallback

LOG: Final = logging.getLogger("vllm_adapter.runtime")
_TAKES_HOST_TENSORS: Final = (
    torch.ops.aten.copy_.default,
    torch.ops.aten.index.Tensor_out,
    torch.ops.aten._index_put_impl_.default,
)
"""Operators that are for tensors of two devices, or take their indices from the host."""
_STEP: Final = 16
"""Bytes: where copies of a storage begin, so that every dtype seen through it is aligned."""


class _Span(NamedTuple):
    """The bytes of one storage that an operator sees, and their copy on the host."""

    address: int
    first: int
    device: int
    host: torch.Tensor


class HostFallback:
    """Runs operators on the host. Called by torch for every operator without a kernel.

    Tensors of one storage share one host copy, the union of what they span: aliases among the
    arguments stay aliases. What was written goes back; nothing else does.
    """

    copies: Copies

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __call__(self, op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Raises UnsupportedCase where the policy is `error`, or the operator gives a view."""
        leaves, spec = tree_flatten((args, kwargs))
        mine = [x for x in leaves if self._is_ours(x)]
        self._refuse_mixture(op, leaves, mine)
        self._admit(op)
        spans = self._download(mine)
        twins = {id(x): self._twin(x, spans) for x in mine}
        moved = [twins.get(id(x), self._device_arg(x)) for x in leaves]
        host_args, host_kwargs = tree_unflatten(moved, spec)
        result = op(*_numbers_as_tensors(op, host_args), **host_kwargs)
        written = self._write_back(op, args, kwargs, spans, twins)
        index = mine[0].get_device() if mine else self._backend.streams.index(_device(leaves))
        return self._results(op, result, written, index)

    def _admit(self, op: torch._ops.OpOverload) -> None:
        backend, name = self._backend, name_of(op)
        if any(r.alias_info and not r.alias_info.is_write for r in op._schema.returns):
            raise UnsupportedCase(
                f"{name} gives a view, and {backend.name} has no kernel for it: a result from the "
                "host would not alias its argument",
                hint="use another view of the tensor, or ask for this operator",
            )
        first = backend.coverage.record(op)
        if backend.policy is Fallback.ERROR:
            raise UnsupportedCase(
                f"{backend.name} has no kernel for {name}, and VA_FALLBACK=error forbids to run "
                "it on the host",
                hint="VA_FALLBACK=warn lets it run there; the library's vendor can add a kernel",
            )
        if first and backend.policy is Fallback.WARN:
            LOG.warning("%s has no kernel for %s: it runs on the host", backend.name, name)

    def _refuse_mixture(
        self, op: torch._ops.OpOverload, leaves: Sequence[Any], mine: Sequence[torch.Tensor]
    ) -> None:
        """As torch does for other devices; host tensors of no dimension may meet any."""
        devices = {x.device for x in mine}
        if mine and op not in _TAKES_HOST_TENSORS:
            devices |= {x.device for x in leaves if isinstance(x, torch.Tensor) and x.dim()}
        if len(devices) > 1:
            raise DeviceError(
                f"{name_of(op)} got tensors of {', '.join(sorted(map(str, devices)))}: expected "
                "all tensors to be on the same device",
                hint=f"move them with .to('{mine[0].device}')",
            )

    def _is_ours(self, x: object) -> bool:
        return isinstance(x, torch.Tensor) and x.device.type == self._backend.name

    def _device_arg(self, x: Any) -> Any:
        """A device argument names the host, too."""
        ours = isinstance(x, torch.device) and x.type == self._backend.name
        return torch.device("cpu") if ours else x

    def _download(self, tensors: Sequence[torch.Tensor]) -> dict[int, _Span]:
        wanted: dict[int, tuple[torch.Tensor, int, int]] = {}
        for tensor in tensors:
            low, high = span(tensor)
            if low < high:
                key = tensor.untyped_storage()._cdata
                _, first, last = wanted.get(key, (tensor, low, high))
                wanted[key] = (tensor, min(low, first), max(high, last))
        spans = {}
        for key, (tensor, low, high) in wanted.items():
            low -= low % _STEP
            host = torch.empty(high - low, dtype=torch.uint8, device="cpu")
            held = _Span(tensor.untyped_storage().data_ptr(), low, tensor.get_device(), host)
            self.copies.download(held.address + low, host, held.device)
            spans[key] = held
        return spans

    def _twin(self, tensor: torch.Tensor, spans: dict[int, _Span]) -> torch.Tensor:
        """The tensor's view of its storage's host copy."""
        held = spans.get(tensor.untyped_storage()._cdata)
        if held is None or not tensor.numel():
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
        size = tensor.element_size()
        whole = held.host[: held.host.numel() // size * size].view(tensor.dtype)
        offset = tensor.storage_offset() - held.first // size
        twin = whole.as_strided(tensor.shape, tensor.stride(), offset)
        if tensor.is_conj():
            twin = torch._conj(twin)
        return torch._neg_view(twin) if tensor.is_neg() else twin

    def _write_back(
        self,
        op: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        spans: dict[int, _Span],
        twins: dict[int, torch.Tensor],
    ) -> dict[str, Any]:
        """Sends what was written back; gives the written arguments by their alias's name."""
        hosts = {held.host.untyped_storage()._cdata for held in spans.values()}
        named: dict[str, Any] = {}
        dirty = set()
        for k, argument in enumerate(op._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = kwargs.get(argument.name, args[k] if k < len(args) else None)
            named.update(dict.fromkeys(argument.alias_info.before_set, value))
            for tensor in filter(self._is_ours, tree_flatten(value)[0]):
                twin = twins[id(tensor)]
                if twin.shape == tensor.shape and twin.untyped_storage()._cdata in hosts:
                    dirty.add(tensor.untyped_storage()._cdata)
                elif twin.numel() or tensor.numel():  # the operator resized its output
                    tensor.resize_(twin.shape)
                    self.copies.copy(twin, tensor)
        for key in dirty:
            held = spans[key]
            self.copies.upload(held.host, held.address + held.first, held.device)
        return named

    def _results(
        self, op: torch._ops.OpOverload, result: Any, written: dict[str, Any], index: int
    ) -> Any:
        def back(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if x.layout != torch.strided:
                raise UnsupportedCase(
                    f"{name_of(op)} gives a tensor of {x.layout}, which {self._backend.name} "
                    "cannot hold",
                    hint="do it on the host: tensor.cpu() first",
                )
            made = self._backend.empty(x.shape, x.dtype, index, x.stride())
            return self.copies.copy(x, made)

        several = isinstance(result, tuple)
        given = []
        for declared, value in zip(
            op._schema.returns, result if several else (result,), strict=False
        ):
            if declared.alias_info is None:
                given.append(tree_map(back, value))
            else:
                given.append(written[next(iter(declared.alias_info.before_set))])
        if not op._schema.returns:
            return None
        return tuple(given) if several else given[0]


def _device(leaves: Sequence[Any]) -> torch.device | None:
    return next((x for x in leaves if isinstance(x, torch.device)), None)


def _numbers_as_tensors(op: torch._ops.OpOverload, args: Sequence[Any]) -> list[Any]:
    """torch hands a kernel the number of `x + 1` as it is, where the schema says Tensor.

    Few operators take it back that way.
    """
    if torch._C._should_allow_numbers_as_tensors(op._schema.name.partition("::")[2]):
        return list(args)
    return [
        torch.tensor(x, device="cpu")
        if isinstance(x, bool | int | float | complex) and str(declared.type) == "Tensor"
        else x
        for x, declared in zip(args, op._schema.arguments, strict=False)
    ]
