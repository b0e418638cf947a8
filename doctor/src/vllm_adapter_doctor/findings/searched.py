"""A report that many patterns are looked for in: quickly, across wrapped lines, and only in what
a program said.

Most patterns are not in most reports. A word of each is looked for in the whole text at once, and
only where one is found is the pattern compiled and tried, on the lines around it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import accumulate
from typing import Final

from vllm_adapter.hostfacts.facts import Line
from vllm_adapter_doctor.findings.samples import sample_lines

_WRAPPED: Final = 40
_NARROW: Final = 56
"""Columns: no terminal or page is narrower, so that a line was broken there only if its next word
would not have fitted, or nearly so."""
_JOINED: Final = 3
_FRAME: Final = r'^\W*File "[^"]+", line \d+, in '
_CODE: Final = (
    r"^\s*(?:[-+]\s*)?"
    r"(?:raise\b|return\b|print\(|assert\b.*,$|except\b|elif\b|if\b.*:\s*$|if [(\"']|with\b.*:\s*$"
    r"|log(?:ger|ging)?\.\w+\(|_?LOG(?:GER)?\.\w+\(|warnings?\.warn\(|throw\b|//|/\*|\"\"\""
    r"|TORCH_CHECK|std::|fprintf|printf\(|echo\b|grep\b|(?:e|f)?grep |rg |RUN\b|#+ (?!\[)"
    r"|\w+ = (?:re\.compile\(|[rfb]?[\"'(\[])|[rfb]{1,2}[\"']|[\"'](?<=    .)"
    r"|[\"'].*[\"'],?\s*\\?$(?<=[,\\])"
    r"|(?!\w*(?:Error|Exception|Warning)\b)[\w.]+\([rfb]?[\"'].*[\"'][,)]*$)"
)
_ADVICE: Final = (
    r"(?i)\b(?:if|when|whenever|in case|unless) (?:you|your|it|this|that|the|a|an|vllm|torch|one|"
    r"there)\b|\b(?:errors?|messages?) (?:like|such as)\b|\bfor example\b|\be\.g\.|^\s*(?:Q|FAQ)\b"
    r"|\b(?:fix(?:es|ed)?|closes|resolves) #?\d|\bmeans that\b"
)
_PROBE: Final = (
    r"^\W*(?:\S+ ){0,3}(?:DEBUG|TRACE)\b|\bis not available because\b|when checking \w+ platform"
    r"|^\d{4}-\d\d-\d\d \S+ [WI] (?:tensorflow|external|xla)/|\b(?:stream_executor|tensorflow)/"
    r"|Could not load dynamic library"
)
_RAISED: Final = r"^\W*(?:\[\w+\]:? *)?[\w.]*(?:Error|Exception|Warning|Failure)\b"


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled once: there are more of them than `re` itself keeps."""
    return re.compile(pattern)


class ReportSearch:
    """The lines of one report. `told` gives what a program said, and nothing that quotes it."""

    def __init__(self, lines: tuple[Line, ...]) -> None:
        self._lines = lines

    @cached_property
    def _folded(self) -> str:
        """All lines in small letters, joined by blanks, so that a wrapped sentence is one."""
        return " ".join(self._small)

    @cached_property
    def _small(self) -> list[str]:
        return [line.text.strip().lower() for line in self._lines]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(text) + 1 for text in self._small)][:-1]

    @cached_property
    def _samples(self) -> frozenset[int]:
        return sample_lines([line.text for line in self._lines])

    def has(self, words: tuple[str, ...]) -> bool:
        """Whether one of these words, in small letters, is anywhere in the report."""
        return any(word in self._folded for word in words)

    def program_lines(
        self, pattern: str, words: tuple[str, ...] = (), *, debug: bool = False
    ) -> Iterator[tuple[tuple[Line, ...], re.Match[str]]]:
        """(the lines it stands in, match), each line once, in order.

        Left out: source code, advice and samples of documentation, and, without `debug`, what a
        probe says of other platforms.
        """
        if words and not self.has(words):
            return
        wanted = compiled(pattern)
        where = self._around(words) if words else range(len(self._lines))
        seen: set[int] = set()
        for at in where:
            if at in seen:
                continue
            hit = self._match(at, wanted)
            if hit is None:
                continue
            count, found = hit
            seen.update(range(at, at + count))
            if not self._quoting(at, found, debug=debug):
                yield self._lines[at : at + count], found

    def _around(self, words: tuple[str, ...]) -> list[int]:
        """Lines that hold a word, and those before them: a pattern may begin earlier."""
        near: set[int] = set()
        for word in words:
            place = self._folded.find(word)
            while place >= 0:
                line = bisect_right(self._starts, place) - 1
                near.update(range(max(0, line - _JOINED + 1), line + 1))
                place = self._folded.find(word, place + len(word))
        return sorted(near)

    def _match(self, at: int, pattern: re.Pattern[str]) -> tuple[int, re.Match[str]] | None:
        text = self._lines[at].text
        found = pattern.search(text)
        if found:
            return 1, found
        joined = last = text.rstrip()
        for count in range(2, _JOINED + 1):
            if at + count > len(self._lines):
                return None
            following = self._lines[at + count - 1].text.strip()
            if not _broken(last, following) or pattern.search(following):
                return None
            joined, last = f"{joined} {following}", following
            found = pattern.search(joined)
            if found and found.start() < len(text):
                return count, found
        return None

    def is_quoted(self, at: int, *, debug: bool = False) -> bool:
        """Whether the line at a position is source code, a document's sample or a probe's."""
        text = self._lines[at].text
        before = self._lines[at - 1].text if at else ""
        if compiled(_CODE).match(text):
            return True
        if compiled(_FRAME).match(before) and (
            text[:1].isspace() or not compiled(_RAISED).match(text)
        ):  # of what was typed a traceback shows no source
            return True
        return (not debug and compiled(_PROBE).search(text) is not None) or at in self._samples

    def is_advice(self, at: int, start: int) -> bool:
        """Whether what stands before a column makes the rest of the line a piece of advice."""
        text = self._lines[at].text
        advice = compiled(_ADVICE).search(text[:start])
        return advice is not None and not compiled(_RAISED).match(text)

    def _quoting(self, at: int, found: re.Match[str], *, debug: bool) -> bool:
        if self.is_quoted(at, debug=debug):
            return True
        advice = compiled(_ADVICE).search(found.string[: found.start()])
        return advice is not None and not compiled(_RAISED).match(self._lines[at].text)


def _broken(line: str, following: str) -> bool:
    """Whether a line may have been broken by the edge of a terminal or a page."""
    if not following:
        return False
    return len(line) >= _WRAPPED or len(line) + len(following.split(maxsplit=1)[0]) >= _NARROW
