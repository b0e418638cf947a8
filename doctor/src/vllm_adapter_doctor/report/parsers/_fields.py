"""`Key: value` lines of environment reports, whatever a paste did to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from vllm_adapter_doctor.report.text import Report

ABSENT: Final = frozenset(
    {"n/a", "none", "no cuda", "not available", "module not found", "na", "-"}
)
UNKNOWN: Final = frozenset({"could not collect", "unknown", "<unknown>"})
_DECORATION: Final = re.compile(r"[\s\-*`_•]*")
_SEVERAL: Final = 3


@dataclass(frozen=True, slots=True)
class ReportField:
    """A key as the tool spells it, its value, and the line's position in the report."""

    key: str
    value: str
    position: int


class FieldNames:
    """The keys of one tool, and how to find them in a line.

    A key counts at the start of a line (after list marks and other markup), after a terminal's
    padding, after "Could not collect" (a collector forgets that line break), and anywhere in a
    line that holds three of them: there the line breaks were lost.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._spelling = {key.lower(): key for key in keys}
        words = "|".join(
            re.escape(key).replace(r"\ ", r"\s+")
            for key in sorted(self._spelling, key=len, reverse=True)
        )
        self._pattern = re.compile(rf"(?<![\w/.])({words})[*`]*\s*:[*`]*", re.IGNORECASE)

    def fields(self, report: Report) -> list[ReportField]:
        """All fields in order; one without a value has the value ""."""
        return [
            ReportField(key, value, position)
            for position, line in enumerate(report.lines)
            if ":" in line.text
            for key, value in self._split(line.text)
        ]

    def _split(self, text: str) -> Iterator[tuple[str, str]]:
        found = list(self._pattern.finditer(text))
        if len(found) < _SEVERAL:
            found = [one for one in found if _starts(text[: one.start()])]
        ends = [one.start() for one in found[1:]] + [len(text)]
        for one, end in zip(found, ends[: len(found)], strict=True):
            value = text[one.end() : end]
            key = self._spelling[" ".join(one[1].lower().split())]
            yield key, value.strip().strip("`*").strip()


def _starts(before: str) -> bool:
    return (
        not before
        or _DECORATION.fullmatch(before) is not None
        or before.endswith(("Could not collect", " " * 8))
    )


def known_value(value: str | None) -> str | None:
    """The value, unless it says that there is none or that nobody could read it."""
    if value is None or not value or value.lower() in ABSENT or value.lower() in UNKNOWN:
        return None
    return None if value.endswith(("...", "…")) else value


def parse_bool(value: str | None) -> bool | None:
    """True or False as printed; None for anything else."""
    return {"true": True, "false": False}.get((value or "").lower())


def version(value: str | None) -> str | None:
    """The version that a value begins with: "2.5.1+cpu", "510.47.03"; None if it is none."""
    found = re.match(r"v?(\d+(?:\.\d+)*[\w.+-]*)", known_value(value) or "")
    return found[1].rstrip(".") if found else None
