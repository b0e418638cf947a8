"""Latencies in bins of 1 %, so that hours of them take no more memory than a minute's."""

from __future__ import annotations

import math
from typing import Final

STEP: Final = math.log(1.01)
SHORTEST_S: Final = 1e-6
BINS: Final = 2100
"""Up to about twenty minutes."""


def bin_of(seconds: float) -> int:
    """The bin of a latency."""
    return min(BINS - 1, max(0, int(math.log(max(seconds, SHORTEST_S) / SHORTEST_S) / STEP)))


def seconds_of(bin: int) -> float:
    """The middle of a bin, in seconds."""
    return SHORTEST_S * math.exp((bin + 0.5) * STEP)
