"""Failures of one cause as one: the same operator, the same kind of error, the same pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.judge.outcome import Result

_NUMBER: Final = re.compile(
    rf"\b(?:{'|'.join(DTYPES)})\b|0x[0-9a-fA-F]+|[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
)
"""What differs between cases of one cause."""
_RAISED: Final = re.compile(r"\w*(?:Error|Exception|Refused|Case|Warning): ")
_PLACE: Final = re.compile(r" \([^()]*:\d+\)$")
_NAMES: Final = sorted(OPERATORS, key=len, reverse=True)
_SHOWN: Final = 3


@dataclass(frozen=True)
class FailureGroup:
    """Failures of one cause, in the plan's order; the first stands for all."""

    results: Sequence[Result]

    @property
    def first(self) -> Result:
        """The failure that is shown and written as a script."""
        return self.results[0]

    @property
    def others(self) -> int:
        """How many are not shown."""
        return len(self.results) - 1

    def cases(self, shown: int = _SHOWN) -> list[str]:
        """A line for each rule: its name, how many cases, and the first few."""
        lines = []
        for rule, cases in self._by_rule().items():
            more = f", and {len(cases) - shown} more" if len(cases) > shown else ""
            lines.append(f"{rule} ({len(cases)}): {', '.join(cases[:shown])}{more}")
        return lines

    def _by_rule(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for result in self.results:
            rule, _, case = result.item.partition("[")
            found.setdefault(rule, []).append(case.removesuffix("]"))
        return found


def grouped(failures: Iterable[Result]) -> list[FailureGroup]:
    """Failures by cause: those of most cases first, then as they came."""
    found: dict[tuple[str, ...], list[Result]] = {}
    for result in failures:
        found.setdefault(_key(result), []).append(result)
    return [FailureGroup(results) for results in sorted(found.values(), key=lambda r: -len(r))]


def operator_of(result: Result) -> str:
    """The operator that a failure is about; its rule where it is about none."""
    said = result.expected.partition(":")[0].partition(" ")[0]
    if said in OPERATORS:
        return said
    rule, _, case = result.item.partition("[")
    for text in (rule, case):
        for name in _NAMES:
            if re.search(rf"(?<![a-z_]){name}(?![a-z_])", text):
                return name
    return rule


def _key(result: Result) -> tuple[str, ...]:
    subject = operator_of(result)
    if result.share is not None and result.cause:
        return result.outcome, subject, result.cause
    if _RAISED.match(result.seen):
        # The same exception by whichever rule, at whichever line the suite called.
        return result.outcome, subject, _plain(_PLACE.sub("", result.seen))
    return result.outcome, subject, _plain(result.expected), _plain(result.seen)


def _plain(text: str) -> str:
    return _NUMBER.sub("#", text)
