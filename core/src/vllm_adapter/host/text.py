"""A pasted report as clean lines: no escape codes, no log prefixes, no quoting.

The number of a line is that of the text as it was given, so that evidence can be looked up in it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vllm_adapter.host.software_facts import Line

_BOMS: Final = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
_ESCAPE: Final = re.compile(
    r"(?:\x1b|\ufffd|\u241b|\\x1b|\\e|\\033|\^\[)\[[0-9;?]*[A-Za-z]"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()][A-Z0-9]"
    r"|(?<![\w\]])\[(?:0|1|4|7|22|24|27|[39][0-7])(?:;[0-9]+)*m"  # the escape byte was lost
)
_PREFIX: Final = re.compile(
    r"^(?:> ?|\| ?(?=\d{4}-\d\d-\d\d[T ]))?"
    r"(?:\([A-Za-z_]+\w*(?: [\w=]+)* pid=\d+(?:, ip=[\d.]+)?\)\s?)?"  # engine and Ray workers
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? "
    r"(?:std(?:out|err) [FP] )?)?"
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\u200e\u200f\ufeff]")


@dataclass(frozen=True, slots=True)
class Report:
    """Lines in order. Blanks and tabs inside a line, and at its start, are as they were."""

    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        """All lines, joined by line breaks."""
        return "\n".join(line.text for line in self.lines)

    def find(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
        """(position in `lines`, match) of every line in which the pattern is found."""
        for position, line in enumerate(self.lines):
            found = pattern.search(line.text)
            if found:
                yield position, found

    def first(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The first match of any line."""
        return next((found for _, found in self.find(pattern)), None)


def clean(raw: bytes | str) -> Report:
    """The report in a file or a paste; bytes that are no text become U+FFFD."""
    text = decode(raw) if isinstance(raw, bytes) else raw
    if "&lt;" in text or "&gt;" in text or "&amp;" in text:
        text = html.unescape(text)
    lines = []
    for number, line in enumerate(re.split(r"\r\n|\n|\r(?!\n)", text), start=1):
        lines.append(Line(number, clean_line(line)))
    while lines and not lines[-1].text:
        lines.pop()
    return Report(tuple(lines))


def decode(raw: bytes) -> str:
    """Text of bytes in UTF-8 or, with a byte-order mark, UTF-16."""
    for mark, encoding in _BOMS:
        if raw.startswith(mark):
            return raw.decode(encoding, "replace")
    return raw.decode("utf-8", "replace")


def clean_line(line: str) -> str:
    """One line without escape codes, a log's prefix, and blanks at its end."""
    line = _ESCAPE.sub("", line).replace("\xa0", " ")
    line = _CONTROL.sub("", line)
    return _PREFIX.sub("", line, count=1).rstrip()
