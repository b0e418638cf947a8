"""The square tables of `rocm-smi --showtopo` and `amd-smi topology`, cell by cell.

A cell is believed only in a row that has exactly one cell for each label of its header, so that a
cut line says nothing rather than something wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from vllm_adapter_doctor.report.text import Report

_TITLES: Final = re.compile(
    r"\b(weight|hops|link type|(?:link )?access(?:ibility)?|(?:numa )?(?:bw|bandwidth))"
    r" (?:between two [A-Za-z]+|table\b|={4,})",
    re.IGNORECASE,
)
_OTHER_TITLE: Final = re.compile(r"={4,}|\bTABLE\b")
_LABEL: Final = re.compile(
    r"(?:GPU|HCU|DCU)\d{1,3}|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
)
_BRACKETS: Final = re.compile(r"\b(GPU|HCU|DCU)\[(\d{1,3})\](?!\s*:)")
"""Labels as older tools and Hygon's print them."""
_CELLS: Final = {
    "weight": re.compile(r"\d{1,5}|N/?A|None"),
    "hops": re.compile(r"\d{1,3}|N/?A|None"),
    "type": re.compile(r"0|[A-Za-z][A-Za-z0-9_]*|N/?A"),
    "access": re.compile(r"TRUE|FALSE|ENABLED|DISABLED|SELF|N/?A", re.IGNORECASE),
    "bandwidth": re.compile(r"\d{1,9}-\d{1,9}|N/?A"),
}
_SELF: Final = {"0", "SELF", "N/A", "NA", "NONE"}
MIN_WEIGHT: Final = 13
"""The least weight of a link: one inside a socket. XGMI has 15, PCIe 20; less is a cut number.

# upstream: linux drivers/gpu/drm/amd/amdkfd/kfd_crat.c: KFD_CRAT_INTRA_SOCKET_WEIGHT
"""


@dataclass(slots=True)
class PairTable:
    """One square table: `cells` by (row, column), in the words of the tool, without self."""

    kind: str
    labels: tuple[str, ...]
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    bad_rows: list[str] = field(default_factory=list)


def read_tables(report: Report) -> list[PairTable]:
    """All tables that have at least one whole row, in the order of the text."""
    tables: list[PairTable] = []
    kind: str | None = None
    current: PairTable | None = None
    last = len(report.lines) - 1
    for position, line in enumerate(report.lines):
        text = _BRACKETS.sub(r"\1\2", line.text.strip())
        if title := _TITLES.search(text):
            kind, current = _kind(title[1]), None
            continue
        if _OTHER_TITLE.search(text):
            kind = current = None
            continue
        if kind is None or not text:
            continue
        if labels := _header(text):
            current = PairTable(kind, labels)
            tables.append(current)
        elif current is not None:
            _row(current, text, cut=position == last)
    return [table for table in tables if table.rows]


def _kind(title: str) -> str:
    word = title.lower()
    if word.endswith(("bw", "bandwidth")):
        return "bandwidth"
    return {"weight": "weight", "hops": "hops", "link type": "type"}.get(word, "access")


def _header(text: str) -> tuple[str, ...] | None:
    """The labels of a line that has nothing but labels; None if one is there twice."""
    if _LABEL.sub("", text).strip(" \t|"):
        return None
    labels = tuple(found.lower() if ":" in found else found for found in _LABEL.findall(text))
    return labels if labels and len(set(labels)) == len(labels) else None


def _row(table: PairTable, text: str, *, cut: bool) -> None:
    """Enters one row. In the last line of a report the last cell may be cut short."""
    first, *cells = text.replace("|", " ").split()
    label = first.lower() if ":" in first else first
    if label not in table.labels:
        return
    pattern = _CELLS[table.kind]
    if len(cells) != len(table.labels) or not all(pattern.fullmatch(cell) for cell in cells):
        table.bad_rows.append(label)
        return
    if label in table.rows:
        return
    at = table.labels.index(label)
    if table.kind in ("weight", "hops", "type") and cells[at].upper() not in _SELF:
        table.bad_rows.append(label)  # the diagonal is elsewhere: cells are shifted
        return
    table.rows.append(label)
    for column, cell in zip(table.labels, cells, strict=True):
        if column != label and not (cut and column == table.labels[-1]):
            table.cells[label, column] = cell.upper()
