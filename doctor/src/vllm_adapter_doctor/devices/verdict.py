"""A verdict on a device: what one rule says of it, and what a downgrade costs.

Plain data, for the rules that make verdicts (`rules`) and for those who act on them: a choice
leaves out what a verdict refuses, the doctor makes findings of them, a planner recomputes memory
with `bytes_after`, a person reads `reason` and `next_step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any, Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.planning.dtypes import BITS

PLACE: Final = frozenset({"nodes", "adapter", "container"})
"""Subjects of verdicts on where a program runs; all others are of the device and its driver."""


class Outcome(Enum):
    """What a verdict says."""

    OK = "ok"
    """It is known to work."""
    NOTE = "note"
    """It works, with a reservation."""
    UNKNOWN = "unknown"
    """Nobody told what would decide it."""
    DOWNGRADE = "downgrade"
    """A feature is lost, and another takes its place."""
    BY_NAME = "by name"
    """It works, and is used only where it is asked for by name."""
    REFUSE = "refuse"
    """It cannot work."""


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """What one rule says of a device, in one sentence, and what to do about it.

    `subject` is what was judged: "driver", "build", "health", "nodes", a dtype. `code` is the
    doctor's, where it has one for this. `got` and `need` are versions or archs where compared,
    `pointer` is the rule's place in the descriptor, if there. `to` is what a downgraded dtype
    becomes; the dtype is then the subject.
    """

    outcome: Outcome
    subject: str
    code: str
    reason: str
    got: str | None = None
    need: str | None = None
    pointer: str | None = None
    next_step: str = ""
    to: str | None = None
    evidence: tuple[Evidence, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether it keeps the device from being chosen."""
        return self.outcome in (Outcome.BY_NAME, Outcome.REFUSE)

    @property
    def feature(self) -> str | None:
        """The dtype that a downgrade takes away."""
        return self.subject if self.outcome is Outcome.DOWNGRADE else None

    @property
    def message(self) -> str:
        """Reason and next step as one sentence."""
        return f"{self.reason}: {self.next_step}" if self.next_step else self.reason

    def to_json(self) -> dict[str, Any]:
        """A JSON object, as one of a device's reasons."""
        return {"reason": self.reason, "next_step": self.next_step, "code": self.code or None}


def bytes_after(size: int, feature: str, to: str) -> int:
    """What `size` bytes of one dtype take in another: 8 bits to 16 doubles them.

    Scales beside the elements are not counted. Raises KeyError for a dtype of unknown width.
    """
    share = Fraction(BITS[to], BITS[feature])
    return -(-size * share.numerator // share.denominator)


def consequence(verdict: DeviceVerdict, *, weight_bytes: int = 0, kv_bytes: int = 0) -> str:
    """A downgrade's cost as a sentence: weights and KV cache before and after, in bytes."""
    if verdict.feature is None or verdict.to is None:
        return ""
    parts = [
        f"{what} take {bytes_after(size, verdict.feature, verdict.to)} bytes instead of {size}"
        for what, size in (("weights", weight_bytes), ("KV cache blocks", kv_bytes))
        if size
    ]
    return " and ".join(parts)
