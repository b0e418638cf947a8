"""Sizes, numbers and bus addresses, as the tools print them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vllm_adapter_doctor.report.text import Report

MIB: Final = 1 << 20
_UNITS: Final = {"": 1, "k": 10, "m": 20, "g": 30, "t": 40}
_BDF: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B", re.I)


def normal_bdf(text: str) -> str | None:
    """A PCI address as "0000:3b:00.0"; None for text that is none."""
    found = _BDF.fullmatch(text.strip().lower())
    if not found:
        return None
    domain = (found[1] or "0000").lstrip("0").rjust(4, "0")
    return f"{domain}:{found[2]}:{found[3]}.{found[4]}"


def binary_size(text: str | None) -> int | None:
    """Bytes of "65536 MiB", "64GB" or "512 B", by powers of 1024 whether or not there is an i.

    Device tools count so: they divide bytes by 1024 and print MB.
    """
    found = _SIZE.fullmatch((text or "").strip())
    return round(float(found[1]) * (1 << _UNITS[found[2].lower()])) if found else None


def number(text: str | None) -> float | None:
    """The number that a reading begins with: 35 of "35 C"; None of "N/A"."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)(?![\d.])", text or "")
    return float(found[1]) if found else None


def cpu_list(text: str) -> tuple[int, ...] | None:
    """The CPUs of "0-3,8" or "0 1 2", sorted; empty for no text.

    None for a list that was cut ("0,2,4...", "0-", "0,2,"), and for text that is none: a part of
    a list must not be taken for the whole.
    """
    found: set[int] = set()
    for part in re.split(r",\s*|\s+", text.strip()) if text.strip() else ():
        ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if not ends or int(ends[2] or ends[1]) < int(ends[1]):
            return None
        found.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return tuple(sorted(found))


def is_complete_line(report: Report, position: int) -> bool:
    """Whether a line is surely all there: the end of the text may be in the middle of one."""
    return report.ended or position + 1 < len(report.lines)


def with_end(report: Report, position: int) -> str:
    """A line's text, and a blank after it where it is surely all there: that ends a version."""
    text = report.lines[position].text
    return f"{text} " if is_complete_line(report, position) else text


def without_blank_lines(report: Report) -> Report:
    """The report without blank lines, where a paste has put one after each line."""
    lines = tuple(line for line in report.lines if line.text.strip())
    doubled = len(lines) > 2 and len(report.lines) - len(lines) >= len(lines) - 2
    return replace(report, lines=lines) if doubled else report
