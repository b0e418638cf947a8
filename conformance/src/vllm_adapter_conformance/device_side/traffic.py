"""Bytes that cross between the device and the host while an operator's kernel runs.

Two meters: a C library's copies are counted at its function table, whoever asks for them; what a
kernel asks of torch is counted where torch dispatches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_adapter.engine.ops.plans import PLANS
from vllm_adapter.engine.ops.providers import load
from vllm_adapter.engine.ops.step import phase_of

from .calls import PlainCall, ReadyCall

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.ops.bind import Binding

_SIZE_AT: Final = {"copy_to_host": 4, "copy_to_device": 4}
"""Where the C ABI's copies have their bytes."""


@dataclass
class Traffic:
    """Bytes in both directions."""

    to_host: int = 0
    to_device: int = 0

    def add(self, name: str, size: int) -> None:
        """Counts a copy of the C ABI."""
        if name == "copy_to_host":
            self.to_host += size
        else:
            self.to_device += size


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
    """Counts what torch copies between the host and another device."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._traffic = traffic

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in ("aten::copy_", "aten::_copy_from"):
            target, source = args[:2] if name == "aten::copy_" else (args[1], args[0])
            self._count(source, target)
        elif name == "aten::_to_copy":
            self._count(args[0], result)
        elif name == "aten::_local_scalar_dense":
            self._traffic.to_host += 0 if args[0].is_cpu else args[0].element_size()
        return result

    def _count(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if target.is_cpu and not source.is_cpu:
            self._traffic.to_host += target.nbytes
        elif source.is_cpu and not target.is_cpu:
            self._traffic.to_device += source.nbytes


def traffic_of(device: HeldDevice, *, call: PlainCall) -> dict[str, int]:
    """Bytes of one call, after another one that may settle what is kept for good."""
    ready = ReadyCall(device, call)
    run, args = _kernel(ready.binding, ready.args, call)
    ready.reset()
    run(*args)
    ready.reset()
    device.synchronize()
    traffic = Traffic()
    with _counted(device, traffic), Meter(traffic):
        run(*args)
        device.synchronize()
    return {"to_host": traffic.to_host, "to_device": traffic.to_device}


def _kernel(
    binding: Binding, args: Sequence[Any], call: PlainCall
) -> tuple[Callable[..., Any], Any]:
    """The adapter's function itself, where the overload would hide from torch what it does."""
    step = call["step"]
    phase = None if step is None else _phase(binding, step)
    picks = binding.picks
    pick = picks.get(phase) or picks.get(None)
    if pick is None or pick.entry.run is None or not pick.entry.pointer.startswith(_own(call)):
        return binding.run, args
    kernel = load(pick.entry.run, pick.provider)
    if binding.handle:
        return kernel, [*args[:-1], PLANS[binding.handle].state]
    return kernel, args


def _own(call: PlainCall) -> str:
    """What an entry's pointer begins with, if it is the operator's own and no other's part."""
    return f"/operators/{call['op']}"


def _phase(binding: Binding, step: Any) -> Any:
    return phase_of(tuple(step["query_lens"]), tuple(step["context_lens"]))


@contextmanager
def _counted(device: HeldDevice, traffic: Traffic) -> Iterator[None]:
    """Counts the copies of the device's C library, if it is one."""
    runtime: Any = device.runtime
    table = getattr(getattr(runtime, "library", None), "functions", None)
    if not isinstance(table, dict):
        yield
        return
    kept = {name: table[name] for name in _SIZE_AT if name in table}

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            traffic.add(name, int(arguments[_SIZE_AT[name]]))
            return function(*arguments)

        return counted

    table.update({name: counting(name, function) for name, function in kept.items()})
    try:
        yield
    finally:
        table.update(kept)
