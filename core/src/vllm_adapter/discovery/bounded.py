"""importlib_metadata's parser of entry points, on a text that was read already.

A module of its own: deriving from `Distribution` needs importlib_metadata, which is loaded late.
"""

from __future__ import annotations

import errno
from typing import Any

from importlib_metadata import Distribution


class _FileDistribution(Distribution):
    """A distribution of one file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "entry_points.txt" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


def points_in(text: str, group: str) -> list[tuple[str, str]]:
    """The name and value of each entry point of a group.

    Raises:
        OSError: the text is not in the form of entry_points.txt.
    """
    try:
        return [
            (point.name, point.value)
            for point in _FileDistribution(text).entry_points.select(group=group)
        ]
    except Exception:  # the parser has no error of its own for a line without "="
        raise OSError(errno.EINVAL, "one of its lines is not NAME = VALUE") from None
