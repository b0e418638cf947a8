"""How long calls take on a device: by its events where it has them, else by the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

SAMPLE_S: Final = 0.002
"""So long one sample takes at least: much longer than a clock's grain and a wait's return."""
MOST_CALLS: Final = 2000
LONG_S: Final = 0.2
"""Such a call needs no second one to warm it up, unless it compiled."""

Call = Callable[[], Any]


class Stopwatch:
    """Times calls in batches. `clock` is "events" or "host"."""

    def __init__(self, device: HeldDevice) -> None:
        self._runtime, self._index = device.runtime, device.index
        self._events, self._device = _events(device), device.device
        # Of this device: another one may be the current one.
        self._current_stream = torch.get_device_module(device.device).current_stream
        self.clock = "host" if self._events is None else "events"

    def calls_for(self, call: Call) -> int:
        """How many calls make a sample; it is called until that is known, which warms it up."""
        begin = time.perf_counter()
        call()
        self.wait()
        if time.perf_counter() - begin > LONG_S:
            return 1
        number = 1
        while True:
            begin = time.perf_counter()
            for _ in range(number):
                call()
            self.wait()
            taken = time.perf_counter() - begin
            if taken >= SAMPLE_S or number >= MOST_CALLS:
                return number
            number = min(MOST_CALLS, max(2 * number, int(number * SAMPLE_S / max(taken, 1e-9))))

    def seconds(self, call: Call, number: int) -> float:
        """Seconds of one call, as the mean of a batch of them, which the device runs alone."""
        self.wait()
        if self._events is None:
            begin = time.perf_counter()
            for _ in range(number):
                call()
            self.wait()
            return (time.perf_counter() - begin) / number
        first, last = self._events
        stream = self._current_stream(self._device)
        first.record(stream)
        for _ in range(number):
            call()
        last.record(stream)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / number

    def wait(self) -> None:
        """Waits for the current stream."""
        self._runtime.synchronize_stream(self._index)


def in_turn(calls: Sequence[Call]) -> Call:
    """A call that makes each of several in turn, so that none finds its data in a cache."""
    at = 0

    def call() -> Any:
        nonlocal at
        at = (at + 1) % len(calls)
        return calls[at]()

    return call


def _events(device: HeldDevice) -> tuple[Any, Any] | None:
    """Two timed events of the device; None where it has none: the CPU's measure nothing."""
    if device.device.type == "cpu":
        return None
    module = torch.get_device_module(device.device)
    make = getattr(module, "Event", None)
    if make is None:
        return None
    first, last = make(enable_timing=True), make(enable_timing=True)
    return first, last
