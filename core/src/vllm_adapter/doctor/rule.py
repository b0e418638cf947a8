"""What a rule of the doctor is: it looks at one box and says what is wrong, with evidence.

A rule says nothing where it is not sure. Two shapes: a `Rule` around a function of the box, and
a `TextRule`, for a failure that has a text of its own. Each module of `doctor.rules` has a tuple
`RULES` of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from vllm_adapter.codes import CODES
from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.host.facts import HostFacts, Line

MAX_EVIDENCE: Final = 5


@dataclass
class Box:
    """One machine under examination: its facts, and whether they are of this machine now."""

    facts: HostFacts
    live: bool = False

    @cached_property
    def text(self) -> str:
        """The report, line by line; empty where the facts are live."""
        return "\n".join(line.text for line in self.facts.report)

    def lines(self, pattern: str | re.Pattern[str]) -> Iterator[tuple[Line, re.Match[str]]]:
        """Every line of the report in which the pattern is found."""
        compiled = re.compile(pattern) if isinstance(pattern, str) else pattern
        for line in self.facts.report:
            found = compiled.search(line.text)
            if found:
                yield line, found

    def says(self, pattern: str | re.Pattern[str]) -> bool:
        """Whether the report has such a line."""
        return next(self.lines(pattern), None) is not None

    def evidence(
        self, pattern: str | re.Pattern[str], otherwise: str = ""
    ) -> tuple[Evidence, ...]:
        """The lines of the report that hold the pattern; else the sentence, as a host fact."""
        found = tuple(quoted(line) for line, _ in self.lines(pattern))[:MAX_EVIDENCE]
        if found or not otherwise:
            return found
        return (Evidence(otherwise, "host facts"),)


def quoted(line: Line) -> Evidence:
    """A line of the report as evidence."""
    return Evidence(line.text.strip(), f"line {line.number}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that looks at facts: `check` yields findings, of this code."""

    code: str
    check: Callable[[Box], Iterable[Finding]]


def finding(
    code: str,
    evidence: Iterable[Evidence],
    cause: str,
    action: str = "",
    severity: Severity = Severity.ERROR,
) -> Finding:
    """A finding; without an action of its own it has the register's."""
    return Finding(code, severity, tuple(evidence), cause, action or CODES[code].action)


@dataclass(frozen=True, slots=True)
class TextRule:
    """A failure that names itself. `cause` and `action` are format strings of the named groups.

    `unless` are patterns that take the meaning away wherever they stand in the report; `only` is
    one that must stand somewhere. `on` is a further condition on the box.
    """

    code: str
    pattern: str
    cause: str
    action: str = ""
    severity: Severity = Severity.ERROR
    unless: tuple[str, ...] = ()
    only: str = ""
    on: Callable[[Box], bool] | None = field(default=None)

    def check(self, box: Box) -> Iterator[Finding]:
        """One finding for each distinct wording, with every line that says it."""
        if any(box.says(one) for one in self.unless) or (self.only and not box.says(self.only)):
            return
        if self.on is not None and not self.on(box):
            return
        grouped: dict[tuple[str, str], list[Evidence]] = {}
        for line, match in box.lines(self.pattern):
            words = {name: text or "" for name, text in match.groupdict().items()}
            said = (self.cause.format(**words), self.action.format(**words))
            grouped.setdefault(said, []).append(quoted(line))
        for (cause, action), evidence in grouped.items():
            yield finding(self.code, evidence[:MAX_EVIDENCE], cause, action, self.severity)
