"""What changes between two plans: the lines, and the figures that they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_adapter.planning.line import PlanLine
from vllm_adapter.planning.plan import ExecutionPlan


@dataclass(frozen=True, slots=True)
class LineChange:
    """One line that differs; a side is None where the line is in one plan alone.

    `figures` are the readings of the line that differ: (pointer, before, after).
    """

    key: str
    before: PlanLine | None
    after: PlanLine | None
    figures: tuple[tuple[str, Any, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "key": self.key,
            "before": self.before.to_json() if self.before else None,
            "after": self.after.to_json() if self.after else None,
            "figures": [
                {"pointer": pointer, "before": old, "after": new}
                for pointer, old, new in self.figures
            ],
        }


def differences(before: ExecutionPlan, after: ExecutionPlan) -> list[LineChange]:
    """The lines whose value, reason, figures or assumptions differ, in the plan's order."""
    old = {line.key: line for line in before.lines}
    new = {line.key: line for line in after.lines}
    found = []
    for key in dict.fromkeys((*old, *new)):
        one, other = old.get(key), new.get(key)
        if one is None or other is None or _said(one) != _said(other):
            found.append(LineChange(key, one, other, tuple(_figures(one, other))))
    return found


def _said(line: PlanLine) -> tuple[Any, ...]:
    figures = tuple((one.pointer, repr(one.value)) for one in line.reads)
    return line.value, line.reason, figures, line.assumptions, line.owner


def _figures(one: PlanLine | None, other: PlanLine | None) -> list[tuple[str, Any, Any]]:
    old = {reading.pointer: reading.value for reading in one.reads} if one else {}
    new = {reading.pointer: reading.value for reading in other.reads} if other else {}
    return [
        (pointer, old.get(pointer), new.get(pointer))
        for pointer in dict.fromkeys((*old, *new))
        if old.get(pointer) != new.get(pointer)
    ]
