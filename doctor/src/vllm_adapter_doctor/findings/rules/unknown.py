"""Failures of a text that no other rule explains: quoted, so that nobody hears all is well."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter.hostfacts.facts import Line
from vllm_adapter_doctor.findings.failures import FailureSpan, find_failures, words_of
from vllm_adapter_doctor.findings.host import ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit

_SHOWN: Final = 3
_TELLING: Final = 12
"""Characters of a text that is not found in another line by chance."""
_NEAR: Final = 4
"""Lines beside one that is explained which are of the same message."""
_KERNEL: Final = re.compile(r"\bNVRM: |\bamdgpu\b|\bhabanalabs\b|\b(?:xe|i915) [0-9a-f]{4}:")
"""Lines of the kernel's log: what a driver says of a device whose fault a finding names."""
_LINE: Final = "line "


def unexplained(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """The last failure that nothing explains, and what failed before it.

    What an error of another rule explains, explains what comes after it, too: a program fails
    once, and its other processes then say so.
    """
    lines = box.facts.report
    if not lines:
        return

    def quotes(at: int, start: int) -> bool:
        return box.searched.is_quoted(at) or box.searched.is_advice(at, start)

    found = find_failures(lines, words_of(data["words"]), quotes)
    left = _without_explained(lines, found, box)
    if not left:
        return
    strong = [one for one in left if one.strong]
    own = [one for one in strong or left if not one.follows] or strong or left
    last = own[-1]
    shown = [quoted(lines[one.said]) for one in own if _text(lines, one) != _text(lines, last)]
    evidence = [quoted(lines[last.said]), *dict.fromkeys(shown[-_SHOWN + 1 :])]
    values = {
        "place": last.place,
        "log": data["logs"].get(box.vendor.name, "") if box.vendor else "",
        "project": _project(last.place, data["projects"]),
        "line": _short(_text(lines, last)),
    }
    beside = any(one.severity is Severity.ERROR for one in box.said)
    case = "failed beside" if beside else "consequence" if last.follows else "failed"
    yield RuleHit(evidence, values, case if last.strong else "complained")


def _text(lines: Sequence[Line], one: FailureSpan) -> str:
    return lines[one.said].text.strip()


def _short(text: str, most: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " ..."


def _project(place: str, projects: dict[str, str]) -> str:
    package = re.split(r"[/.]", place)[0] if place else ""
    return projects.get(package, "")


def _without_explained(
    lines: Sequence[Line], found: Sequence[FailureSpan], box: ExaminedHost
) -> list[FailureSpan]:
    own: set[int] = set()  # numbers of lines that a finding quotes
    said = set(_of_devices(box))
    start: int | None = None  # where the first explained error stands
    for one in box.said:
        for each in one.evidence:
            number = _number(each)
            said.add(each.text)
            if number is None:
                continue
            own.update(range(number - _NEAR, number + _NEAR + 1) if _is_wrong(one) else (number,))
            if one.severity is Severity.ERROR:
                start = number if start is None else min(start, number)
    of_kernel = any(one.code[:4] in ("VA17", "VA18") and _is_wrong(one) for one in box.said)
    said = {text for text in said if len(text) >= _TELLING}
    left = []
    for failure in found:
        numbers = range(lines[failure.first].number, lines[failure.last].number + 1)
        text = _text(lines, failure)
        if any(number in own for number in numbers) or any(each in text for each in said):
            continue
        if of_kernel and not failure.strong and _KERNEL.search(text):
            continue
        if start is not None and (not failure.strong or lines[failure.last].number >= start):
            continue
        left.append(failure)
    return left


def _of_devices(box: ExaminedHost) -> Iterator[str]:
    """What the kernel and the tools say is wrong with devices, where a finding speaks of it."""
    if any(one.code[:4] in ("VA17", "VA18") for one in box.said):
        for device in box.facts.accelerators:
            yield from (error.partition(": ")[2] or error for error in device.health.errors)


def _is_wrong(one: Finding) -> bool:
    return one.severity is not Severity.NOTE


def _number(one: Evidence) -> int | None:
    return int(one.source[len(_LINE) :]) if one.source.startswith(_LINE) else None
