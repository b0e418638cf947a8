"""A decision on what a driver, a torch build or an arch allows, and what a downgrade costs.

Plain data, for the rules that make it (`driver_rules`) and for those who act on it: a planner
recomputes memory with `bytes_after`, a person reads `message` and `consequence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

BITS: Final[Mapping[str, int]] = {
    "float64": 64,
    "float32": 32,
    "tfloat32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "int8": 8,
    "float4_e2m1fn": 4,
    "int4": 4,
}
"""Bits of one element in memory."""


class Outcome(Enum):
    """What a decision says."""

    OK = "ok"
    """It is known to work."""
    NOTE = "note"
    """It works, with a reservation."""
    UNKNOWN = "unknown"
    """Nobody told what would decide it."""
    DOWNGRADE = "downgrade"
    """A feature is lost, and another takes its place."""
    REFUSE = "refuse"
    """It cannot work."""


@dataclass(frozen=True, slots=True)
class DriverDecision:
    """One decision, with its sentence. `pointer` is the rule's place in the descriptor, if there.

    A downgrade has `feature` and `to`; `got` and `need` are versions or archs where compared.
    """

    outcome: Outcome
    subject: str
    message: str
    got: str | None = None
    need: str | None = None
    feature: str | None = None
    to: str | None = None
    pointer: str | None = None


def bytes_after(size: int, feature: str, to: str) -> int:
    """What `size` bytes of one dtype take in another: 8 bits to 16 doubles them.

    Scales beside the elements are not counted. Raises KeyError for a dtype of unknown width.
    """
    share = Fraction(BITS[to], BITS[feature])
    return -(-size * share.numerator // share.denominator)


def consequence(decision: DriverDecision, *, weight_bytes: int = 0, kv_bytes: int = 0) -> str:
    """A downgrade's cost as a sentence: weights and KV cache before and after, in bytes."""
    if decision.feature is None or decision.to is None:
        return ""
    parts = [
        f"{what} take {bytes_after(size, decision.feature, decision.to)} bytes instead of {size}"
        for what, size in (("weights", weight_bytes), ("KV cache blocks", kv_bytes))
        if size
    ]
    return " and ".join(parts)
