"""Reading sysfs, procfs and /dev under a root that may be a fake tree, and never raising."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Final

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


class Tree:
    """The files of one machine. Paths are the machine's own ("/proc/meminfo"), whatever the root.

    `unknown` gathers the (field, where) pairs of what could not be read.
    """

    def __init__(self, root: Path) -> None:
        self.live = str(root) == "/"
        self._prefix = "" if self.live else str(root)
        self.unknown: list[tuple[str, str]] = []

    def on_disk(self, path: str) -> str:
        """Where a path of the machine lies for `open`."""
        return self._prefix + path

    def missing(self, field: str, where: str) -> None:
        """Records that a field could not be read."""
        self.unknown.append((field, where))

    def text(self, path: str, limit: int = 1 << 18) -> str | None:
        """At most `limit` bytes of a file, or None if it cannot be read."""
        try:
            # A server has some hundred PCI functions of four files each: plain descriptors cost
            # a third of what a buffered text file does.
            handle = os.open(self.on_disk(path), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                chunks = []
                while limit > 0 and (chunk := os.read(handle, limit)):
                    chunks.append(chunk)
                    limit -= len(chunk)
            finally:
                os.close(handle)
        except (OSError, ValueError):  # ValueError: a zero byte in a path taken from a file
            return None
        return b"".join(chunks).decode("utf-8", "replace")

    def names(self, path: str) -> list[str] | None:
        """Names in a folder, sorted, or None if it cannot be read."""
        try:
            return sorted(os.listdir(self.on_disk(path)))
        except (OSError, ValueError):
            return None

    def matching(self, pattern: str) -> list[str]:
        """Paths that an absolute glob matches; a glob that cannot be followed matches none."""
        if not pattern.startswith("/"):
            return []
        try:
            found = glob.glob(glob.escape(self._prefix) + pattern)
        except (OSError, ValueError):
            return []
        return [path.removeprefix(self._prefix) for path in found]

    def link_name(self, path: str) -> str | None:
        """The last part of a symbolic link's target, or None if there is no link."""
        try:
            return os.path.basename(os.readlink(self.on_disk(path))) or None
        except (OSError, ValueError):
            return None


def parse_integer(text: str | None) -> int | None:
    """A decimal integer of at most 19 digits, surrounding blanks allowed; else None."""
    text = (text or "").strip()
    return int(text) if _INTEGER.fullmatch(text) else None


def parse_cpulist(text: str | None) -> tuple[int, ...] | None:
    """The kernel's list format: "0-3,8" is (0, 1, 2, 3, 8), blank is (); else None.

    Numbers have at most five digits: a damaged file must not make us allocate without end.
    """
    if text is None:
        return None
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        found = _RANGE.fullmatch(part)
        if found is None:
            return None
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(numbers))


def key_values(text: str | None) -> dict[str, str]:
    """Lines "key : value" as a mapping; the first line of a key wins."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    return values
