"""What commands print with: tables, colour, JSON, warnings, progress."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

from vllm_adapter.files import bounded

_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}
_CELL: Final = 200
_LINE: Final = 2000
"""Characters of a cell, and of a line, that are printed of what may be a stranger's."""
_SPARSE_SECONDS: Final = 10.0
_DRAW_SECONDS: Final = 0.1


def colour(text: str, name: str, stream: TextIO | None = None) -> str:
    """The text in a colour, if the stream (default stdout) is a terminal that wants colours.

    `name`: red, green, yellow, bold or dim. NO_COLOR and TERM=dumb switch colours off.
    """
    if not _is_terminal(stream or sys.stdout) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m"


def clean(value: Any, limit: int = _LINE) -> str:
    """A value as one line of bounded length that cannot steer the terminal: None is `-`."""
    text = "-" if value is None else bounded(str(value), limit)
    return "".join(c if c.isprintable() else " " for c in text)


def table(rows: Iterable[Sequence[Any]], headers: Sequence[str]) -> str:
    """Aligned columns under their headers, with a line break at the end; cells go by `clean`."""
    # The last column moves no other: it may be a sentence.
    lines = [
        [*(clean(cell, _CELL) for cell in row[:-1]), clean(row[-1])] for row in (headers, *rows)
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )


def emit_json(value: Any) -> None:
    """Prints one JSON document on stdout; ASCII, so that any terminal and pipe can take it."""
    print(json.dumps(value, indent=2, allow_nan=False))


def warn(sentence: str) -> None:
    """One warning on stderr."""
    print(f"{colour('warning:', 'yellow', sys.stderr)} {clean(sentence)}", file=sys.stderr)


def error_line(message: str, code: str, hint: str) -> None:
    """An error and its next step on stderr."""
    mark = colour("error:", "red", sys.stderr)
    print(f"{mark} {clean(message)} [{code}]\nhint: {clean(hint)}", file=sys.stderr)


class Progress:
    """Progress of long work, on stderr: a bar on a terminal, else a line now and then.

    with Progress(len(cases), "L2") as progress:
        for case in cases:
            progress.step(case.name)
    """

    def __init__(self, total: int, label: str, stream: TextIO | None = None) -> None:
        self.total = total
        self.label = label
        self.done = 0
        self._stream = stream or sys.stderr
        self._bar = _is_terminal(self._stream)
        self._wait = _DRAW_SECONDS if self._bar else _SPARSE_SECONDS
        self._last = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar:
            self._write("\r\x1b[K")

    def step(self, text: str = "") -> None:
        """One more is done; `text` says what."""
        self.done += 1
        self.note(text)

    def note(self, text: str) -> None:
        """Says how far the present one is."""
        now = time.monotonic()
        if now - self._last < self._wait:
            return
        self._last = now
        count = f"{self.done}/{self.total}"
        if not self._bar:
            self._write(f"{self.label} {count} {clean(text)}".rstrip() + "\n")
            return
        filled = round(20 * min(1.0, self.done / max(1, self.total)))
        line = f"{self.label} [{'#' * filled}{'.' * (20 - filled)}] {count} {clean(text)}"
        self._write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"
