"""What a device can do, as it was measured, and how a call's time is judged by it.

No speed is asked for. Two ends are sane alone: a call cannot be faster than the device, and one
that takes a thousand times as long as it must is not a slow kernel but a sleep, or work that
goes over the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_adapter_conformance.performance.figures import Figure, figure
from vllm_adapter_conformance.performance.work import Work

CEILING: Final = 1.1
"""A call that is so many times as fast as the device ever was: work left out, or wrongly timed."""
FLOOR: Final = 1 / 1000
"""Least share of the roofline, beside the time of launches. Plain Python over torch reaches 1/100
on every shape tried; the host's memory behind a link has 1/50 of an accelerator's bandwidth."""
LAUNCHES: Final = 300
"""So many empty launches a call may cost beside that: a portable attention needs about fifty."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Rates of one device in one dtype.

    `memory` is bytes a second, beyond the caches; `compute` floating-point operations a second
    of a product of matrices; `launch` seconds of a call that does next to nothing. `best_memory`
    and `best_compute` are the fastest of all samples of any size, in a cache or not: what else
    runs on the machine makes every rate lower, and none higher.
    """

    memory: float
    compute: float
    launch: float
    best_memory: float
    best_compute: float

    def seconds(self, work: Work) -> float:
        """The least time of a call, its launch not counted."""
        return max(work.bytes / self.memory, work.flops / self.compute)

    def bound(self, work: Work) -> str:
        """What that time goes to: "memory" or "compute"."""
        memory, compute = work.bytes / self.memory, work.flops / self.compute
        return "memory" if memory >= compute else "compute"

    def lowest_seconds(self, work: Work) -> float:
        """No call that does its work can take less, all that it reads being in a cache."""
        return max(work.bytes / self.best_memory, work.flops / self.best_compute)


def shares(roof: Roofline, work: Work, seconds: Sequence[float], rates: Sequence[float]) -> Figure:
    """The share of the roofline that a call reaches, of pairs measured in turn.

    `rates` are of what bounds the call, each measured next to the sample of `seconds` of the same
    place: what else runs on the machine then slows both.
    """
    memory = roof.bound(work) == "memory"
    amount = work.bytes if memory else work.flops
    other = work.flops / roof.compute if memory else work.bytes / roof.memory
    pairs = zip(seconds, rates, strict=True)
    return figure([max(amount / rate, other) / taken for taken, rate in pairs], "share")


def insane(roof: Roofline, work: Work, taken: Figure, share: Figure) -> str | None:
    """Why a call's time, in seconds, cannot be that of its work here; None if it can.

    It is too slow where its share is below the floor too, which was measured beside it: a machine
    that has become busy since the roofline was measured is no fault of the kernel.
    """
    if roof.lowest_seconds(work) > CEILING * taken.high:
        return (
            f"{spell_seconds(taken.median)} a call ({spell_seconds(taken.low)} to "
            f"{spell_seconds(taken.high)}), where the fastest sample of a copy, read or product "
            f"gives {spell_seconds(roof.lowest_seconds(work))}: work is left out, or its end is "
            "not waited for"
        )
    most = LAUNCHES * roof.launch + roof.seconds(work) / FLOOR
    if taken.low > most and share.high < FLOOR:
        return (
            f"{spell_seconds(taken.median)} a call, where the roofline's time is "
            f"{spell_seconds(roof.seconds(work))} and an empty launch {spell_seconds(roof.launch)}"
            ": a sleep, or work that goes over the host"
        )
    return None


def spell_seconds(seconds: float) -> str:
    """A time in the unit that keeps it short.

    >>> spell_seconds(0.00314), spell_seconds(2e-7), spell_seconds(75.0)
    ('3.14 ms', '0.2 us', '75 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def spell_rate(figure: Figure) -> str:
    """A rate with its interval, such as "9.81 (9.5 to 10.1) GB/s"."""
    unit = {"bytes/s": "B/s", "flop/s": "FLOP/s"}[figure.unit]
    power = max(0, min(4, int(math.log10(max(figure.median, 1)) // 3)))
    size = 1000.0**power
    parts = (f"{value / size:.3g}" for value in (figure.median, figure.low, figure.high))
    middle, low, high = parts
    return f"{middle} ({low} to {high}) {' KMGT'[power].strip()}{unit}"
