"""`nvidia-smi topo -m`, of all ages, and the tables that other makers' tools copy from it.

# upstream: MetaX mx-smi 2.2 `topo -m` prints `Node Affinity` before `CPU Affinity`, and MX links
# upstream: Iluvatar `ixsmi topo -m` has the labels and words of nvidia-smi's
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.vendor_files import once, sections, typed
from vllm_adapter_doctor.report.parsers._matrix import MatrixStyle, MatrixTable, find_tables
from vllm_adapter_doctor.report.parsers._matrix_cells import CellPatterns
from vllm_adapter_doctor.report.parsers._matrix_facts import (
    accelerators,
    host_nodes,
    joined,
    matrix,
    with_legend,
)
from vllm_adapter_doctor.report.text import Report

PEER_WORDS: Final = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})


@dataclass(frozen=True, slots=True)
class _VendorTable:
    """One maker's table: the command that prints it, and what tells it from the others' tables.

    `words` name the maker anywhere in the text, `labels` begin the names of its devices, `cells`
    are words for links and `column` a column that nobody else prints. The `assumed` one's words
    and tables are those that others copy.
    """

    vendor: str
    table: str
    words: re.Pattern[str] | None = None
    labels: str | None = None
    cells: str | None = None
    column: str | None = None
    assumed: bool = False


@once
def _makers() -> tuple[_VendorTable, ...]:
    found = [
        typed(raw, _VendorTable, vendor=vendor)
        for vendor, raw in sections("links")
        if "table" in raw
    ]
    return tuple(sorted(found, key=lambda one: one.assumed))


@once
def _style() -> MatrixStyle:
    labels = "|".join(("GPU", *(one.labels for one in _makers() if one.labels)))
    own = "|".join(one.cells for one in reversed(_makers()) if one.cells)
    return MatrixStyle(
        device=rf"(?:{labels})\d+(?!\d)",
        words=CellPatterns(rf"{own}|NODE|SYS|PHB|PXB|PIX|PSB|SOC|X"),
        nics=True,
    )


_LEGEND_LINES: Final = 16


def parse(report: Report) -> HostFacts:
    """Every link table whose labels are GPU0, GPU1, ..., or another maker's word with numbers.

    Tables of peer access are `nvidia_p2p`'s.
    """
    parts = []
    for table in find_tables(report, _style()):
        if is_peer(table, report):
            continue
        maker = _maker(table, report)
        found = with_legend(matrix(table, maker.table, maker.vendor), report, table)
        parts.append((found, host_nodes(accelerators(table, maker.table, maker.vendor))))
    return joined(parts)


def is_peer(table: MatrixTable, report: Report) -> bool:
    """Whether a table's cells are answers about peer access, not links."""
    cells = {cell for row in table.rows.values() for cell in row.cells} - {"X"}
    if cells:
        return cells <= PEER_WORDS
    legend = report.lines[table.last + 1 : table.last + 1 + _LEGEND_LINES]
    return not table.columns and any("Status Ok" in line.text for line in legend)


def _maker(table: MatrixTable, report: Report) -> _VendorTable:
    """By what one maker alone prints; by its name in the text; at last by the name nearest."""
    cells = {cell for row in table.rows.values() for cell in row.cells}
    for one in _makers():
        labelled = one.labels and table.labels[0].startswith(one.labels)
        if labelled or (one.column and _has(table, one)):
            return one
        if one.cells and any(re.fullmatch(one.cells, cell) for cell in cells):
            return one
    (assumed,) = (one for one in _makers() if one.assumed)
    named = [one for one in _makers() if one.words and any(report.find(one.words))]
    if len(named) < 2:
        return named[0] if named else assumed
    for line in reversed(report.lines[: table.first]):
        for one in _makers():
            if one.words and one.words.search(line.text):
                return one
    return assumed


def _has(table: MatrixTable, maker: _VendorTable) -> bool:
    """Whether the table has the maker's column; one that others have too must be the first."""
    columns = table.columns if maker.assumed else table.columns[:1]
    return maker.column in columns
