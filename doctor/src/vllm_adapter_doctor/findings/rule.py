"""What a rule of the doctor is: it looks at one box and says what is wrong, with evidence.

A rule says nothing where it is not sure. Its words are data (`findings/KIND.toml` of
vllm-adapter-vendors): one or several cases of a code with a cause and what to do, each with a text
that fires it. What it looks for is a pattern in the report, a condition of the facts, a pair of
releases, or a function of `doctor.rules` where something has to be computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from vllm_adapter.contract.codes import CODES, fault
from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter_doctor.findings.conditions import ALWAYS, FactCondition
from vllm_adapter_doctor.findings.host import MAX_EVIDENCE, ExaminedHost
from vllm_adapter_doctor.findings.searched import compiled
from vllm_adapter_doctor.findings.template import render

_UNRELEASED: Final = re.compile(r"\.dev\d|\+g[0-9a-f]{7}|^0\.0\.0|\bdev\b")
"""Versions that a source tree counts, which say nothing of a release."""
BOX_PLACES: Final = frozenset({"box_device", "box_torch", "box_runtime", "box_vendor"})
"""Places that every sentence may have, whatever its rule looks for: `Box.places`."""


@dataclass(frozen=True, slots=True)
class FindingSample:
    """A text that fires a case. `also` are other codes that it rightly gets; `live` has it read as
    facts of this machine now.
    """

    text: str
    also: frozenset[str] = frozenset()
    live: bool = False


@dataclass(frozen=True, slots=True)
class FindingCase:
    """One thing that a rule may say. `match` holds patterns of places, `when` of the box.

    A function calls it by its `name`. A `silent` one says that what was matched means nothing.
    Without an action of its own a case has the code's. `seen` is false where no real report has
    fired it.
    """

    where: str
    code: str
    cause: str
    name: str = ""
    action: str = ""
    severity: Severity = Severity.ERROR
    match: tuple[tuple[str, str], ...] = ()
    when: FactCondition = ALWAYS
    silent: bool = False
    seen: bool = True
    sample: FindingSample = field(default_factory=lambda: FindingSample(""))

    def fits(self, box: ExaminedHost, values: Mapping[str, str]) -> bool:
        """Whether this case is meant."""
        return all(
            compiled(pattern).search(values.get(place, "")) for place, pattern in self.match
        ) and self.when.holds(box)

    def finding(self, evidence: Iterable[Evidence], values: Mapping[str, str]) -> Finding:
        """What it says of a box."""
        action = render(self.action, values) if self.action else CODES[self.code].action
        cause = render(self.cause, values)
        return Finding(self.code, self.severity, tuple(evidence), cause, action)


@dataclass(frozen=True, slots=True)
class RuleHit:
    """What a function found: evidence, what fills the places, and which case it is.

    Without a name it is the first case that fits.
    """

    evidence: Iterable[Evidence]
    values: Mapping[str, str] = field(default_factory=dict)
    case: str = ""


class RuleMatcher(Protocol):
    """What a rule looks for."""

    def hits(self, box: ExaminedHost) -> Iterator[RuleHit]:
        """Everything that was found, in order."""

    @property
    def joins(self) -> int:
        """Of hits that say the same, the pieces of evidence that are kept; 0: each is its own."""

    def places(self) -> Mapping[str, bool] | None:
        """Places that it can fill, and whether always; None where that is not known."""


@dataclass(frozen=True, slots=True)
class FindingRule:
    """A rule: where it stands, what it looks for, on which boxes, and what it may say.

    One that is `last` is asked after the others, and sees what they found (`ExaminedHost.said`).
    """

    where: str
    look: RuleMatcher
    cases: tuple[FindingCase, ...]
    when: FactCondition = ALWAYS
    last: bool = False

    def check(self, box: ExaminedHost) -> Iterator[Finding]:
        """Every finding."""
        for _, finding in self.said(box):
            yield finding

    def said(self, box: ExaminedHost) -> Iterator[tuple[FindingCase, Finding]]:
        """Every finding, with the case that says it."""
        found: dict[tuple[object, ...], tuple[FindingCase, Finding]] = {}
        for number, hit in enumerate(self.look.hits(box)):
            if not number and not self.when.holds(box):  # asked late: it is dearer than words
                return
            values = {**box.places, **hit.values}
            case = self._case(box, hit, values)
            if case is None or case.silent:
                continue
            said = case.finding(hit.evidence, values)
            key = (case.where, said.cause, said.action) if self.look.joins else (number,)
            if key in found:
                evidence = (*found[key][1].evidence, *said.evidence)[: self.look.joins]
                said = Finding(said.code, said.severity, evidence, said.cause, said.action)
            found[key] = (case, said)
        yield from found.values()

    def _case(
        self, box: ExaminedHost, hit: RuleHit, values: Mapping[str, str]
    ) -> FindingCase | None:
        if hit.case:
            named = next((one for one in self.cases if one.name == hit.case), None)
            if named is None:
                raise fault(self.where, "a case of the name that its function gives", hit.case)
            return named
        return next((one for one in self.cases if one.fits(box, values)), None)


Data = Mapping[str, Any]
Function = Callable[[ExaminedHost, Data], Iterable[RuleHit]]


@dataclass(frozen=True, slots=True)
class FunctionMatcher:
    """A function of `doctor.rules`, and the data that the file gives it."""

    function: Function
    data: Data
    joins: int = 0

    def hits(self, box: ExaminedHost) -> Iterator[RuleHit]:
        """What the function found."""
        yield from self.function(box, self.data)

    def places(self) -> None:
        """Only the function knows."""


@dataclass(frozen=True, slots=True)
class FactMatcher:
    """The rule's condition itself. `quote` finds lines that show it; else `fact` is shown."""

    fact: str
    quote: str = ""
    joins: int = 0

    def hits(self, box: ExaminedHost) -> Iterator[RuleHit]:
        """Once, for the condition to decide."""
        values = {
            **box.places,
            "system": box.facts.os.distribution or box.facts.os.name or "",
            "cpu": box.facts.cpu.model or "this CPU",
        }
        fact = render(self.fact, values)
        lines = box.evidence(self.quote) if self.quote else ()
        yield RuleHit(lines or (Evidence(fact, "host facts"),), values)

    def places(self) -> Mapping[str, bool]:
        """Of the host."""
        return {"system": True, "cpu": True}


@dataclass(frozen=True, slots=True)
class VersionMatcher:
    """Two versions that have to be of one release.

    Each side names facts, the first that is known counts; a side's places are its version, its
    `_release`, and its `_name`. With `same`, they are of one release, and a case says more.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    part: str
    facts: tuple[str, ...]
    same: bool = False
    joins: int = 0

    def hits(self, box: ExaminedHost) -> Iterator[RuleHit]:
        """One for each fact of the left side that is held against the right one."""
        right = next(filter(None, (_version(box, name) for name in self.right)), None)
        for name in self.left:
            left = _version(box, name)
            if left is None or right is None:
                continue
            if not self.same and any(_UNRELEASED.search(one[0]) for one in (left, right)):
                continue
            mine, theirs = (compiled(self.part).match(one[0]) for one in (left, right))
            if not (mine and theirs) or (mine[0] == theirs[0]) is not self.same:
                continue
            values = {
                "left": left[0],
                "left_name": name.partition(":")[2],
                "left_release": mine[0],
                "right": right[0],
                "right_release": theirs[0],
            }
            yield RuleHit([self._evidence(one, values, left[1]) for one in self.facts], values)

    def _evidence(self, fact: str, values: Mapping[str, str], source: str) -> Evidence:
        of_left = "{left}" in fact and "{right}" not in fact
        return Evidence(render(fact, values), source if of_left else "host facts")

    def places(self) -> Mapping[str, bool]:
        """Of both sides."""
        names = ("left", "left_name", "left_release", "right", "right_release")
        return dict.fromkeys(names, True)


def _version(box: ExaminedHost, name: str) -> tuple[str, str] | None:
    """(version, source) of "torch", "vllm", "driver:NAME" or "package:NAME"."""
    what, _, which = name.partition(":")
    facts = box.facts
    if what == "driver":
        driver = facts.driver(which)
        return (driver.version, driver.source) if driver else None
    version = (
        facts.package(which)
        if what == "package"
        else (facts.torch and facts.torch.version)
        if what == "torch"
        else (facts.vllm and facts.vllm.version)
    )
    return (version, "host facts") if version else None


@dataclass(frozen=True, slots=True)
class TextMatcher:
    """A pattern in what a program said.

    `words`, in small letters, are parts of what the pattern finds: without any of them in the
    report it is not tried. `unless` are patterns that take the meaning away wherever they stand,
    `only` those that must all stand somewhere; `line_unless` and `line_only` look at the line
    itself. With `debug`, lines of level DEBUG count too. Groups of the pattern are places, and
    `node_2` is another way to say `node`. With `variables`, one of these must be set to what
    `value` finds, and is a part of the evidence.
    """

    words: tuple[str, ...]
    pattern: str
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    line_unless: str = ""
    line_only: str = ""
    debug: bool = False
    evidence: int = MAX_EVIDENCE
    variables: tuple[str, ...] = ()
    value: str = ""

    @property
    def joins(self) -> int:
        """Lines that say the same are one finding."""
        return self.evidence + bool(self.variables)

    def hits(self, box: ExaminedHost) -> Iterator[RuleHit]:
        """One for each line, and for each variable where such are asked for."""
        if not box.searched.has(self.words):
            return
        found = [
            (lines, match)
            for lines, match in box.searched.program_lines(
                self.pattern, self.words, debug=self.debug
            )
            if not (self.line_unless and compiled(self.line_unless).search(lines[0].text))
            and not (self.line_only and not compiled(self.line_only).search(lines[0].text))
        ]
        if (
            not found
            or any(map(box.has_line, self.unless))
            or not all(map(box.has_line, self.only))
        ):
            return
        for values, evidence in self._settings(box):
            said = 0
            for lines, match in found:
                kept = [Evidence(one.text.strip(), f"line {one.number}") for one in lines]
                if self.variables:
                    if said >= self.evidence:
                        break
                    kept = kept[: self.evidence - said]
                    said += len(kept)
                yield RuleHit(kept[: self.evidence], {**groups(match.groupdict()), **values})
            if evidence:
                yield RuleHit([evidence], {**groups(found[0][1].groupdict()), **values})

    def _settings(self, box: ExaminedHost) -> Iterator[tuple[Mapping[str, str], Evidence | None]]:
        if not self.variables:
            yield {}, None
        for name in self.variables:
            value = box.facts.variable(name)
            match = None if value is None else compiled(self.value).search(value)
            if match:
                values = {**groups(match.groupdict()), "variable": name, "value": match[0]}
                yield values, Evidence(f"{name}={value}", "environment")

    def places(self) -> Mapping[str, bool]:
        """The groups of its patterns, and of which something is always said."""
        from vllm_adapter_doctor.findings.groups import named_groups, never_matches_empty

        found = dict(named_groups(self.pattern))
        if self.variables:
            found |= {
                **named_groups(self.value),
                "variable": True,
                "value": never_matches_empty(self.value),
            }
        return found


def groups(found: Mapping[str, str | None]) -> dict[str, str]:
    """Named groups as places: of a name with numbers, the first one that has something to say."""
    said: dict[str, str] = {}
    for name, text in found.items():
        base, _, number = name.rpartition("_")
        place = base if base and number.isdigit() else name
        said[place] = said.get(place) or (text or "").strip()
    return said
