"""A measured figure: the median of several samples, and the interval that it is known to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Figure:
    """The median; `low` and `high` enclose it with a confidence of 95 %, by ranks of the samples.

    Nothing is assumed of how the samples are spread. Fewer than six samples reach no such
    confidence: then it is all that they span. `least` and `most` are the extreme samples.
    """

    unit: str
    median: float
    low: float
    high: float
    least: float
    most: float
    samples: int

    def to_json(self) -> dict[str, Any]:
        """As the certificate has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Figure:
        """Reads what `to_json` wrote."""
        return cls(**{name: raw[name] for name in cls.__dataclass_fields__})


def figure(samples: Sequence[float], unit: str) -> Figure:
    """The figure of some samples.

    Raises:
        ValueError: there is none, or one is not finite.
    """
    if not samples or not all(math.isfinite(sample) for sample in samples):
        raise ValueError(f"no figure can be had of the samples {list(samples)}")
    ordered = sorted(samples)
    first = outer_rank(len(ordered))
    return Figure(
        unit,
        statistics.median(ordered),
        ordered[first],
        ordered[-1 - first],
        ordered[0],
        ordered[-1],
        len(ordered),
    )


def outer_rank(count: int) -> int:
    """How many samples may be left out at each end, the rest still enclosing the median.

    Each sample is as likely above the median as below it, so that how many are below follows the
    binomial distribution.

    >>> [outer_rank(n) for n in (1, 5, 6, 9, 15, 100)]
    [0, 0, 0, 1, 3, 39]
    """
    below, left_out = 0.0, 0
    for k in range(count // 2):
        below += math.comb(count, k) / 2.0**count
        if 2 * below > 1 - CONFIDENCE:
            break
        left_out = k
    return left_out
