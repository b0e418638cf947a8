"""Whether something stays as it is over hours, from what was counted in windows of time.

Latencies are kept in bins of 1 %, so that a long run takes no more memory than a short one: what
the judge itself keeps must not look like a leak.
"""

from __future__ import annotations

import itertools
import math
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_adapter_conformance.device_side.bins import BINS, seconds_of

DRIFT: Final = 2.0
"""So many times as slow as in the first third a phase's fast steps may be in the last."""
QUIET: Final = 0.1
"""This part of the steps is the fast ones: on a busy machine most others were interrupted."""
CLOCKED: Final = 0.5
"""This part of the judge's time the device's process must account for, at least: it cannot say
that its steps took less than half of what they did."""
LEAST_STEPS: Final = 60
"""Steps of a phase in a third, without which nothing is said of its drift."""
LEAST_WINDOWS: Final = 6
WARM_UP: Final = 1 / 4
"""This part of the windows is not judged: pools fill, and what is compiled stays."""
SLOPES: Final[Mapping[str, float]] = {
    "bytes on the device": 1.0,
    "bytes of malloc": 16.0,
    "Python objects": 0.5,
    "bytes of the process": 256.0,
}
"""What each step must keep, to be a leak."""
LEAST_GROWTH: Final[Mapping[str, float]] = {
    "bytes of malloc": 64 << 10,
    "Python objects": 500,
    "bytes of the process": 16 << 20,
}
"""What it must have grown by in all: a few steps a window say little, and pages come in pieces."""


@dataclass
class Latencies:
    """How often each latency was seen."""

    counts: array[int] = field(default_factory=lambda: array("Q", bytes(8 * BINS)))

    def add(self, rows: Iterable[Sequence[int]]) -> None:
        """Adds rows (bin, times)."""
        for bin, times in rows:
            self.counts[bin] += times

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """The latency in seconds that a part of all is not above; None without any."""
        wanted = math.ceil(part * self.total)
        if not self.total:
            return None
        for bin, seen in enumerate(itertools.accumulate(self.counts)):
            if seen >= max(1, wanted):
                return seconds_of(bin)
        raise AssertionError("quantiles of a part above 1")


@dataclass(frozen=True)
class Slope:
    """What each step has kept, by the medians of pairs of windows, and the least that it is."""

    a_step: float
    at_least: float


def slope(values: Sequence[float], steps: Sequence[float]) -> Slope | None:
    """The slope of a count over the steps made so far, one pair a window; None: too few windows.

    Theil and Sen's: the median of the slopes between all pairs of windows. `at_least` is its
    lower end by Kendall's statistic, with a confidence of 99.9 %, so that no step up, no sawtooth
    and no garbage that one window has left is taken for a leak.
    """
    first = int(len(values) * WARM_UP)
    kept, made = values[first:], steps[first:]
    count = len(kept)
    if count < LEAST_WINDOWS:
        return None
    slopes = sorted(
        (kept[j] - kept[i]) / (made[j] - made[i])
        for i, j in itertools.combinations(range(count), 2)
        if made[j] > made[i]
    )
    if not slopes:
        return None
    spread = 3.09 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    rank = max(0, int((len(slopes) - spread) / 2))
    return Slope(statistics.median(slopes), slopes[rank])


def leaks(windows: Mapping[str, Sequence[float]]) -> list[str]:
    """A sentence for each count that grows by a little with each step.

    `windows` has a column of the `steps` made until the end of each window, and of each count
    that `SLOPES` names and this machine has.
    """
    found = []
    for what, most in SLOPES.items():
        column = windows.get(what, ())
        seen = slope(column, windows["steps"]) if column else None
        if seen is None:
            continue
        grown = column[-1] - column[int(len(column) * WARM_UP)]
        if seen.at_least >= most and grown >= LEAST_GROWTH.get(what, 0):
            found.append(
                f"{seen.a_step:.3g} more {what} with each step, window after window "
                f"(at least {seen.at_least:.3g}; {len(column)} windows)"
            )
    return found


def drift(first: Latencies, last: Latencies, control: tuple[float, float]) -> float | None:
    """How many times as slow the last third is as the first, beside what the machine is.

    `control` are the seconds of one and the same product in both thirds. None: too few steps.
    """
    if min(first.total, last.total) < LEAST_STEPS:
        return None
    before, after = first.quantile(QUIET), last.quantile(QUIET)
    assert before is not None and after is not None
    machine = max(1.0, control[1] / control[0]) if min(control) > 0 else 1.0
    return after / before / machine


def clocks_disagree(judge: float, there: float, parts: float) -> str | None:
    """Why times of the device's process cannot be true, or None.

    judge: seconds of all windows by the judge's clock. there: the same, of a worker, by the
    clock of the device's process. parts: of those, what steps, checks and calls took; between
    them next to nothing is done.
    """
    if there < CLOCKED * judge:
        return f"{there:.3g} s by the clock of the device's process, {judge:.3g} s by the judge's"
    if parts < CLOCKED * there:
        return f"{parts:.3g} s in steps, checks and calls, of {there:.3g} s that they ran"
    return None


def spread_of(latencies: Latencies) -> dict[str, Any]:
    """As the certificate has it: how many, and p50, p90, p99 and the longest in seconds."""
    longest = next((b for b in range(BINS - 1, -1, -1) if latencies.counts[b]), 0)
    return {
        "steps": latencies.total,
        "p50": latencies.quantile(0.5),
        "p90": latencies.quantile(0.9),
        "p99": latencies.quantile(0.99),
        "longest": seconds_of(longest) if latencies.total else None,
    }
