"""Failures in a text, found by their structure alone: what each says does not matter here.

A traceback has an end, a fatal line and a log's level have their words, a process that ended has a
number, a hang has its complaint. So that a failure of which no rule knows is not passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from vllm_adapter.hostfacts.facts import Line

_FRAME: Final = re.compile(r'^\W*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)")
_CHAIN: Final = re.compile(
    r"During handling of the above exception|The above exception was the direct cause"
)
_RAISED: Final = re.compile(
    r"(?<![\w.'\"(`])"
    r"(?P<name>(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Timeout|Abort))(?:: |:?$)"
)
_NAMED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:\[.*?\])?(?::|$)")
_LOG_HEAD: Final = re.compile(
    r"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b.*?\]:? ?|\[[^\]]*\]:? )+(?=\S|$)"
)
_LONGEST_BLOCK: Final = 400
_MESSAGE: Final = 8
"""Lines that an error's message may have."""
_PLACE: Final = re.compile(r"(?:site|dist)-packages/(?P<place>.+)|(?P<own>[^/]+/[^/]+)$")


@dataclass(frozen=True, slots=True)
class FailureSpan:
    """One failure: positions of its first and last line, the position of what it says.

    `strong` ones end a program; the others are complaints that may be harmless. `place` is where
    it was raised, "vllm/v1/worker/states.py:34", where frames tell. `follows` says that the text
    itself calls it the consequence of another.
    """

    first: int
    last: int
    said: int
    strong: bool
    place: str = ""
    follows: bool = False


class FailureWords:
    """The words of `findings/unknown.toml` by which failures are recognised, compiled."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.strong = _either(data["strong"])
        self.weak = _either(data["weak"])
        self.harmless = _either(data["harmless"])
        self.follows = _either(data["follows"])
        self.lives = _either(data["lives"])
        self.hints = tuple(data["hints"])


def _either(patterns: Sequence[str]) -> re.Pattern[str]:
    flags = "(?i)"  # of one pattern, which may not stand inside of a longer one
    parts = (
        f"(?i:{one.removeprefix(flags)})" if one.startswith(flags) else f"(?:{one})"
        for one in patterns
    )
    return re.compile("|".join(parts))


@cache
def _words(key: tuple[tuple[str, tuple[str, ...]], ...]) -> FailureWords:
    return FailureWords(dict(key))


def words_of(data: Mapping[str, Sequence[str]]) -> FailureWords:
    """The words, compiled once for a file's data."""
    return _words(tuple((name, tuple(values)) for name, values in data.items()))


def find_failures(
    lines: Sequence[Line], words: FailureWords, quoted: Callable[[int, int], bool]
) -> list[FailureSpan]:
    """Every failure, in order, without those that a program outlived: it went on serving.

    `quoted` tells of a position and a column whether what stands there is not a program's own.
    """
    found: list[FailureSpan] = []
    at = 0
    while at < len(lines):
        text = lines[at].text
        if _TRACEBACK.search(text) and not quoted(at, 0):
            one = _traceback(lines, at, words)
            found.append(one)
            at = one.last + 1
            continue
        if words.lives.search(text):
            found.clear()
        elif text and (said := _line(lines, at, words, quoted)):
            found.append(said)
            at = said.last
        at += 1
    return list(_chained(lines, found))


def _traceback(lines: Sequence[Line], start: int, words: FailureWords) -> FailureSpan:
    """The block of one traceback: frames, and the first line at its margin that names a thing."""
    head = lines[start].text
    margin = len(head) - len(head.lstrip())
    place, said, last = "", start, start
    frames = False
    for at in range(start + 1, min(start + _LONGEST_BLOCK, len(lines))):
        text = lines[at].text
        if frame := _FRAME.match(text):
            frames, place, last = True, _place(frame), at
            continue
        bare = _LOG_HEAD.sub("", text)
        if not bare.strip():
            if said != start:
                break
            continue
        indent = len(text) - len(text.lstrip())
        if _TRACEBACK.search(text) and at > start + 1:
            break
        if (indent <= margin or text != bare) and not bare.startswith((" ", "\t")):
            if _NAMED.match(bare.strip()) or _RAISED.search(text):
                end = at
                while end + 1 < len(lines) and end - at < _MESSAGE:
                    if not _goes_on(lines[end + 1].text):
                        break
                    end += 1
                return FailureSpan(start, end, at, True, place, _follows(lines[at].text, words))
            if not frames and indent <= margin:
                break
        last = at
    return FailureSpan(start, last, start, True, place, True)  # its end, which says why, is cut


def _place(frame: re.Match[str]) -> str:
    path = _PLACE.search(frame["file"])
    return f"{path['place'] or path['own'] if path else frame['file']}:{frame['line']}"


def _line(
    lines: Sequence[Line], at: int, words: FailureWords, quoted: Callable[[int, int], bool]
) -> FailureSpan | None:
    text = lines[at].text
    small = text.lower()
    if not any(word in small for word in words.hints):
        return None
    raised = _RAISED.search(text)
    strong = raised or words.strong.search(text)
    hit = strong or words.weak.search(text)
    if hit is None or _FRAME.match(text) or words.harmless.search(text):
        return None
    if quoted(at, hit.start()):
        return None
    first, place = _frames_before(lines, at) if strong else (at, "")
    last = at
    if raised:
        while last + 1 < len(lines) and last - at < _MESSAGE and _goes_on(lines[last + 1].text):
            last += 1
    return FailureSpan(first, last, at, strong is not None, place, _follows(text, words))


def _frames_before(lines: Sequence[Line], at: int) -> tuple[int, str]:
    """Where the frames before an error begin whose traceback has lost its head, and the last."""
    first, place = at, ""
    while first and at - first < _LONGEST_BLOCK:
        before = lines[first - 1].text
        if frame := _FRAME.match(before):
            place = place or _place(frame)
        elif not before.startswith("    "):
            break
        first -= 1
    return first, place


def _goes_on(text: str) -> bool:
    """Whether a line may belong to the message of the error before it."""
    return bool(text.strip()) and not (
        _TRACEBACK.search(text) or _RAISED.search(text) or _LOG_HEAD.match(text)
    )


def _follows(text: str, words: FailureWords) -> bool:
    return words.follows.search(text) is not None


def _chained(lines: Sequence[Line], found: Sequence[FailureSpan]) -> Iterator[FailureSpan]:
    """A failure that the text calls the cause of the next joins it: they are one block."""
    held: FailureSpan | None = None
    for one in found:
        if held is not None and _between(lines, held, one):
            said = held if one.follows or not held.follows else one
            held = FailureSpan(held.first, one.last, said.said, True, said.place, said.follows)
            continue
        if held is not None:
            yield held
        held = one
    if held is not None:
        yield held


def _between(lines: Sequence[Line], one: FailureSpan, other: FailureSpan) -> bool:
    return any(_CHAIN.search(lines[at].text) for at in range(one.last + 1, other.first + 1))
