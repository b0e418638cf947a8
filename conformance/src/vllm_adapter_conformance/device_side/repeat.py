"""One operator called again and again, from one thread or several, or on a stream of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Barrier
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.step import make_step

Device = Any
"""The device, with a bench's names: `bind`, `to_device`, `runtime`, `device`, `opened`."""
Facts = Mapping[str, Any]
Given = Mapping[str, Any]
"""One call as plain data: its arguments, and the step of a planned operator."""
Seen = list[tuple[list[torch.Tensor], list[int]]]
"""Unlike results of one input, each with the numbers of the calls that gave it.

A number below zero is of a result that was read once more after the last call: -1 is call 0's.
"""
WEIGHTS: Final[Mapping[str, int]] = {"linear": 1}
"""Which argument of an operator `prepare_weights` may change."""
KEPT: Final = 8
"""Results of each input that are in use until the last call."""


def call_in_turn(
    device: Device, op: str, facts: Facts, inputs: Sequence[Given], calls: int
) -> list[Seen]:
    """Calls an operator many times, with one or another input."""
    ready = [Ready(device, op, facts, given) for given in inputs]
    for number in range(calls):
        # In no period: a ring of buffers of any length would give each input its own.
        ready[number.bit_count() % len(ready)].call(number)
    return [one.seen() for one in ready]


def call_at_once(
    device: Device, op: str, facts: Facts, inputs: Sequence[Given], calls: int
) -> list[Seen]:
    """Calls an operator from one thread for each input."""
    # A planned operator keeps its step behind the binding: each thread has one of its own.
    ready = [Ready(device, op, facts, given, owner=_Owner()) for given in inputs]
    together = Barrier(len(ready))

    def run(one: Ready) -> None:
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


class _Owner:
    """Whose bindings are apart from all others."""


class Ready:
    """One input on the device, called again and again. Of equal results one is kept."""

    def __init__(
        self, device: Device, op: str, facts: Facts, given: Given, owner: object = None
    ) -> None:
        self.binding = device.bind(op, dict(facts), owner)
        self.args = [
            device.to_device(arg) if isinstance(arg, torch.Tensor) else arg
            for arg in given["args"]
        ]
        self.mutated = [self.args[at] for at in SPECS[op].mutates]
        self.held = [argument.clone() for argument in self.mutated]
        if op in WEIGHTS:
            self.args[WEIGHTS[op]] = self.binding.prepare_weights(self.args[WEIGHTS[op]])
        self.step = given["step"] and make_step(**given["step"], device=device.device)
        if self.step is not None:
            self.args[-1] = self.binding.handle
        self.found: dict[bytes, tuple[list[torch.Tensor], list[int]]] = {}
        self.first: list[tuple[int, Sequence[torch.Tensor], list[torch.Tensor]]] = []

    def call(self, number: int) -> None:
        """Calls once, and keeps what came back."""
        for argument, held in zip(self.mutated, self.held, strict=True):
            argument.copy_(held)
        if self.step is not None:
            self.binding.plan(self.step)
        result = self.binding.run(*self.args)
        results = () if result is None else result if isinstance(result, tuple) else (result,)
        if len(self.first) < KEPT:
            self.first.append((number, results, [written.clone() for written in self.mutated]))
        self._keep(number, (*results, *self.mutated))

    def _keep(self, number: int, found: Sequence[torch.Tensor]) -> None:
        outputs = [output.detach().cpu() for output in found]
        raw = b"".join(o.contiguous().view(torch.uint8).numpy().tobytes() for o in outputs)
        if raw not in self.found:
            # The host may be the device: what is kept must not change with a later call.
            self.found[raw] = [output.clone() for output in outputs], []
        self.found[raw][1].append(number)

    def seen(self) -> Seen:
        """Unlike results, in the order in which they came; those of the first calls read again."""
        for number, results, written in self.first:
            # A ring of buffers gives its first result away again.
            self._keep(~number, (*results, *written))
        return list(self.found.values())


def call_on_stream(
    device: Device, op: str, facts: Facts, early: Given, late: Given, rounds: int, size: int
) -> list[torch.Tensor]:
    """Queues a long copy, `late`'s inputs over `early`'s, and the call; waits for that stream."""
    index = device.opened.record.index
    ready, other = (Ready(device, op, facts, given) for given in (early, late))
    # Of a planned operator the step is `late`'s from the beginning: plans are made once a step.
    ready.step = other.step
    ready.call(0)
    mine, fresh = ([a for a in r.args if isinstance(a, torch.Tensor)] for r in (ready, other))
    if ready.step is not None:
        ready.binding.plan(ready.step)
    long, bulk = (device.to_device(torch.zeros(size, dtype=torch.uint8)) for _ in range(2))
    stream: Any = device.runtime.create_stream(index)
    device.runtime.synchronize_stream(index)
    with _current(device, stream):
        for _ in range(rounds):
            long.copy_(bulk)
        for now, then in zip(mine, fresh, strict=True):
            now.copy_(then)
        result = ready.binding.run(*ready.args)
        device.runtime.synchronize_stream(index, stream)
    results = () if result is None else result if isinstance(result, tuple) else (result,)
    return [output.detach().cpu().clone() for output in (*results, *ready.mutated)]


def _current(device: Device, stream: Any) -> AbstractContextManager[Any]:
    """The stream as the current one, by the runtime's own means or torch's."""
    streams = getattr(device.runtime, "streams", None)
    found: AbstractContextManager[Any] = stream if streams is None else streams.using(stream)
    return found
