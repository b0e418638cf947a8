"""One line of a plan: a value, its reason, and the figures of the descriptor that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_adapter.contract.capability import Capability
from vllm_adapter.errors import CapabilityError


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure that was read: where it stands, what it is, and where it is from."""

    pointer: str
    value: Any
    source: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"pointer": self.pointer, "value": self.value, "source": self.source}


@dataclass(frozen=True, slots=True)
class PlanLine:
    """`owner`: who decided it: planner, operator (a flag of the command line) or an adapter.

    `flags` are for `vllm serve`, `environment` for its process.
    """

    key: str
    value: Any
    reason: str
    reads: tuple[Reading, ...] = ()
    assumptions: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    owner: str = "planner"

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "key": self.key,
            "value": self.value,
            "reason": self.reason,
            "reads": [one.to_json() for one in self.reads],
            "assumptions": list(self.assumptions),
            "flags": list(self.flags),
            "environment": dict(self.environment),
            "owner": self.owner,
        }


class Figures:
    """A descriptor whose figures are read by pointer; what was read, and assumed, is kept."""

    def __init__(self, capability: Capability) -> None:
        self.capability = capability
        self._reads: dict[str, Reading] = {}
        self._assumed: dict[str, None] = {}

    def read(self, pointer: str) -> Any:
        """The figure at a JSON pointer; None where it is null or not there."""
        value: Any = self.capability
        for part in pointer.split("/")[1:]:
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
        self._reads[pointer] = Reading(pointer, value, self._source(pointer, value))
        return value

    def assume(self, sentence: str) -> None:
        """Notes an assumption in place of a figure that is not known."""
        self._assumed[sentence] = None

    def line(self, key: str, value: Any, reason: str, **more: Any) -> PlanLine:
        """A line with all that was read since the last one."""
        reads, assumed = tuple(self._reads.values()), tuple(self._assumed)
        self._reads, self._assumed = {}, {}
        return PlanLine(key, value, reason, reads, assumed, **more)

    def _source(self, pointer: str, value: Any) -> str:
        if value is None:
            return "not known"
        try:
            found = self.capability.source(pointer)
        except CapabilityError:
            return "no source given"
        return f"{found.kind}: {found.reference}" if found.reference else found.kind
