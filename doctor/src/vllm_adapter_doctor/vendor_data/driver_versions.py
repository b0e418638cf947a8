"""Versions of drivers and runtimes: read, compared, and matched by their first parts.

"535.104.12", "24.1.rc3", "6.12.12", "30.10.1", "12.8": numbers with dots, where "rc3" comes before
the release. What is no version is None, and never "old".
"""

from __future__ import annotations

import re
from typing import Final

_VERSION: Final = re.compile(
    r"v?(?P<parts>[0-9]{1,9}(?:\.(?:[0-9]{1,9}|(?:rc|RC)[0-9]{1,4})){0,7})"
    r"(?:\.?(?:[A-Za-z~+_-]|$)[^\s]*)?\Z"
)
_RELEASE: Final = (1, 0)

Version = tuple[tuple[int, int], ...]
"""Parts for comparing: (1, number), and (0, number) for a release candidate."""


def parse_version(text: str | None) -> Version | None:
    """The parts of a version; None if the text is none. What follows "-", "+" or a letter is left.

    "24.1.rc3" is before "24.1" and "24.1.0", which are equal.
    """
    found = _VERSION.match((text or "").strip())
    if found is None:
        return None
    parts = [
        (0, int(part[2:])) if part[0] in "rR" else (1, int(part))
        for part in found["parts"].split(".")
    ]
    while parts and parts[-1] == _RELEASE:
        parts.pop()
    return tuple(parts)


def older(version: Version, than: Version) -> bool:
    """Whether a version comes before another; missing parts are zero."""
    length = max(len(version), len(than))
    return _filled(version, length) < _filled(than, length)


def begins_with(version: str, first: str) -> bool:
    """Whether the first parts of a version are those: "12.8.1" begins with "12" and not with "1".

    Texts that are no versions begin with nothing.
    """
    parts, wanted = _parts(version), _parts(first)
    return bool(parts and wanted) and parts[: len(wanted)] == wanted


def _parts(text: str) -> list[str]:
    found = _VERSION.match(text.strip())
    return found["parts"].lower().split(".") if found else []


def _filled(version: Version, length: int) -> Version:
    return version + (_RELEASE,) * (length - len(version))
