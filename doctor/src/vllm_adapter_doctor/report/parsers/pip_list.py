"""Installed Python packages: `pip list`, `pip freeze`, and the lists inside collect_env."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._packages import is_relevant_package, normalised
from vllm_adapter_doctor.report.text import Report

_VERSION: Final = r"\d[\w.!]*(?:\+[\w.-]+)?"
_TAGGED: Final = re.compile(
    rf"^\W*\[(?:pip3?|conda)\]\s+(?P<name>[A-Za-z][\w.-]*)(?:==|\s+)(?P<version>{_VERSION})(?:\s|$)"
)
_FROZEN: Final = re.compile(rf"^\s*(?P<name>[A-Za-z][\w.-]*)==(?P<version>{_VERSION})\s*(?:;.*)?$")
_ROW: Final = re.compile(
    rf"^\s*\|?\s*(?P<name>[A-Za-z][\w.-]*)\s+\|?\s*(?P<version>{_VERSION})(?:\s.*)?$"
)
_TABLE: Final = re.compile(r"^\s*\|?\s*Package\s+\|?\s*Version\b")
_SHOWN: Final = re.compile(r"^Name: (?P<name>[A-Za-z][\w.-]*)$")
_SHOWN_VERSION: Final = re.compile(rf"^Version: (?P<version>{_VERSION})$")


def parse(report: Report) -> HostFacts:
    """(normalised name, version) of each package, sorted; the first of two versions.

    Rows of two columns are believed under the heading of `pip list`; without it, only names that
    matter to a device.
    """
    report = report.settled
    found: dict[str, str] = {}
    table = False
    shown: str | None = None
    for line in report.lines:
        text = line.text
        table = _TABLE.match(text) is not None or (
            table and (text.strip(" |")[:1] == "-" or _ROW.match(text) is not None)
        )
        if named := _SHOWN.match(text):
            shown = named["name"]
            continue
        if shown and (number := _SHOWN_VERSION.match(text)):
            found.setdefault(normalised(shown), number["version"])
        shown = None
        package = _TAGGED.match(text) or _FROZEN.match(text)
        if package is None and (row := _ROW.match(text)):
            alone = is_relevant_package(normalised(row["name"])) and len(text.split()) <= 3
            package = row if table or alone else None
        if package:
            found.setdefault(normalised(package["name"]), package["version"])
    return HostFacts(packages=tuple(sorted(found.items())))
