"""One operator called again and again, from one thread or several, or on a stream of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Barrier
from typing import TYPE_CHECKING, Any, Final

import torch

from .calls import PlainCall, ReadyCall

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

Seen = list[tuple[list[torch.Tensor], list[int]]]
"""Unlike results of one input, each with the numbers of the calls that gave it.

A number below zero is of a result that was read once more after the last call: -1 is call 0's.
"""
KEPT: Final = 8
"""Results of each input that are in use until the last call."""


def call_in_turn(
    device: HeldDevice, inputs: Sequence[PlainCall], calls: int, devices: Sequence[int] = ()
) -> list[Seen]:
    """Calls an operator many times, with one or another input; `devices`: where each belongs."""
    ready = [_Repeated(on, given) for on, given in _placed(device, inputs, devices)]
    for number in range(calls):
        # In no period: a ring of buffers of any length would give each input its own.
        ready[number.bit_count() % len(ready)].call(number)
    return [one.seen() for one in ready]


def call_at_once(
    device: HeldDevice, inputs: Sequence[PlainCall], calls: int, devices: Sequence[int] = ()
) -> list[Seen]:
    """Calls an operator from one thread for each input; `devices` as `call_in_turn` has them."""
    # A planned operator keeps its step behind the binding: each thread has one of its own.
    ready = [_Repeated(on, given, _Owner()) for on, given in _placed(device, inputs, devices)]
    together = Barrier(len(ready))

    def run(one: _Repeated) -> None:
        together.wait(60)
        for number in range(calls):
            one.call(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(ready)) as pool:
            for done in [pool.submit(run, one) for one in ready]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    return [one.seen() for one in ready]


def _placed(
    device: HeldDevice, inputs: Sequence[PlainCall], devices: Sequence[int]
) -> list[tuple[HeldDevice, PlainCall]]:
    """Each input with its device: another one of the same adapter is opened here."""
    if not devices:
        return [(device, given) for given in inputs]
    record = device.opened.adapter.record
    held = {device.index: device}
    for index in devices:
        if index not in held:
            held[index] = type(device).of_record(record, index)
    return [(held[index], given) for index, given in zip(devices, inputs, strict=True)]


class _Owner:
    """Whose bindings are apart from all others."""


class _Repeated(ReadyCall):
    """One input, called again and again. Of equal results one is kept."""

    def __init__(self, device: HeldDevice, call: PlainCall, owner: object = None) -> None:
        super().__init__(device, call, owner)
        self._device = device
        self._found: dict[bytes, tuple[list[torch.Tensor], list[int]]] = {}
        self._first: list[tuple[int, Sequence[torch.Tensor], list[torch.Tensor]]] = []

    def call(self, number: int) -> None:
        """Calls once, and keeps what came back."""
        self.reset()
        self.plan()
        results = self.run()
        for result in results:
            if result.device != self._device.device:
                raise RuntimeError(
                    f"a result lies on {result.device}, and its arguments on {self._device.device}"
                )
        if len(self._first) < KEPT:
            self._first.append((number, results, [written.clone() for written in self.mutated]))
        self._keep(number, (*results, *self.mutated))

    def _keep(self, number: int, found: Sequence[torch.Tensor]) -> None:
        outputs = [output.detach().cpu() for output in found]
        raw = b"".join(o.contiguous().view(torch.uint8).numpy().tobytes() for o in outputs)
        if raw not in self._found:
            # The host may be the device: what is kept must not change with a later call.
            self._found[raw] = [output.clone() for output in outputs], []
        self._found[raw][1].append(number)

    def seen(self) -> Seen:
        """Unlike results, in the order in which they came; those of the first calls read again."""
        for number, results, written in self._first:
            # A ring of buffers gives its first result away again.
            self._keep(~number, (*results, *written))
        return list(self._found.values())


def call_on_stream(
    device: HeldDevice, early: PlainCall, late: PlainCall, rounds: int, size: int
) -> list[torch.Tensor]:
    """Queues a long copy, `late`'s inputs over `early`'s, and the call; waits for that stream."""
    index = device.index
    ready, other = (_Repeated(device, given) for given in (early, late))
    # Of a planned operator the step is `late`'s from the beginning: plans are made once a step.
    ready.step = other.step
    ready.call(0)
    mine, fresh = ([a for a in r.args if isinstance(a, torch.Tensor)] for r in (ready, other))
    ready.plan()
    long, bulk = (device.to_device(torch.zeros(size, dtype=torch.uint8)) for _ in range(2))
    stream: Any = device.runtime.create_stream(index)
    device.runtime.synchronize_stream(index)
    with _current(device, stream):
        for _ in range(rounds):
            long.copy_(bulk)
        for now, then in zip(mine, fresh, strict=True):
            now.copy_(then)
        results = ready.run()
        device.runtime.synchronize_stream(index, stream)
    return [output.detach().cpu().clone() for output in (*results, *ready.mutated)]


def _current(device: HeldDevice, stream: Any) -> AbstractContextManager[Any]:
    """The stream as the current one, by the runtime's own means or torch's."""
    streams = getattr(device.runtime, "streams", None)
    found: AbstractContextManager[Any] = stream if streams is None else streams.using(stream)
    return found
