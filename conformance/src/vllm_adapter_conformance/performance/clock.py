"""The judge's clock: how long the device's process takes to answer.

The device's process has no part in a time but its end: it is asked to make a call so many times
and to wait for them, and answers when that is done. A clock that an adapter patched, or events
that say what they like, change nothing. The way there and back is in the time, and so many calls
are asked for at once that it is a hundredth of it.
"""

from __future__ import annotations

import time
from typing import Final, Self

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.device_side.ready import forget_ready, run_ready

SAMPLE_S: Final = 0.02
"""So long one sample takes at least; the way there and back takes 0.2 ms."""
MOST_CALLS: Final = 20_000
LONG_S: Final = 0.2
"""A first call that takes longer is tried once more: it may have compiled."""
SAMPLES: Final = 9
SLOW_S: Final = 0.5
FEW_SAMPLES: Final = 3
"""Of calls that take longer than `SLOW_S`."""
WARM_S: Final = 0.2


class JudgeClock:
    """Times calls that the device's process keeps ready, by name, until the block's end."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bench.is_open:  # a process that has ended keeps nothing
            self._bench.observe(forget_ready)

    def seconds(self, name: str, times: int) -> float:
        """Seconds of one call, as the mean of a batch of them, which the device runs alone."""
        begin = time.perf_counter()
        self._bench.observe(run_ready, name=name, times=times)
        return (time.perf_counter() - begin) / times

    def calls_for(self, name: str) -> int:
        """How many calls make a sample; it is called until that is known, which warms it up."""
        if self.seconds(name, 1) > LONG_S and self.seconds(name, 1) > LONG_S:
            return 1
        times = 1
        while (taken := times * self.seconds(name, times)) < SAMPLE_S and times < MOST_CALLS:
            wanted = int(times * SAMPLE_S / max(taken, 1e-9))
            times = min(MOST_CALLS, max(2 * times, wanted))
        return times

    def samples(self, name: str) -> list[float]:
        """Seconds of one call, several times."""
        times = self.calls_for(name)
        found = [self.seconds(name, times)]
        wanted = FEW_SAMPLES if found[0] > SLOW_S else SAMPLES
        return found + [self.seconds(name, times) for _ in range(wanted - 1)]

    def warm(self, name: str) -> None:
        """Calls for a while: clocks of a device rise with work."""
        times, until = self.calls_for(name), time.monotonic() + WARM_S
        while time.monotonic() < until:
            self.seconds(name, times)

    def least(self, name: str, times: int, repeats: int) -> float:
        """Seconds of one call in the fastest of several batches of so many."""
        return min(self.seconds(name, times) for _ in range(repeats))
