"""`nvidia-smi topo -m`, of all ages, and the tables that other makers' tools copy from it.

# upstream: MetaX mx-smi 2.2 `topo -m` prints `Node Affinity` before `CPU Affinity`, and MX links
# upstream: Iluvatar `ixsmi topo -m` has the labels and words of nvidia-smi's
"""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.host.facts import HostFacts
from vllm_adapter.host.parsers._matrix import Style, Table, find_tables
from vllm_adapter.host.parsers._matrix_cells import Words
from vllm_adapter.host.parsers._matrix_facts import (
    accelerators,
    host_nodes,
    joined,
    matrix,
    with_legend,
)
from vllm_adapter.host.text import Report

STYLE: Final = Style(
    device=r"(?:GPU|MLU)\d+(?!\d)",
    words=Words(r"NV\d+(?!\d)|NODE|SYS|PHB|PXB|PIX|PSB|SOC|MX|X"),
    nics=True,
)
PEER_WORDS: Final = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
_TOOLS: Final = {
    "cuda": "nvidia-smi topo -m",
    "metax": "mx-smi topo -m",
    "iluvatar": "ixsmi topo -m",
    "mlu": "cnmon topo -m",
    "musa": "mthreads-gmi topo -m",
    "thead": "ppu-smi topo -m",
}
_NAMED: Final = (
    ("metax", re.compile(r"\bmx-smi\b|MetaX", re.I)),
    ("iluvatar", re.compile(r"\bixsmi\b|\bIX-ML\b|Iluvatar", re.I)),
    ("musa", re.compile(r"\bmthreads-gmi\b|Moore ?Threads|MTLink", re.I)),
    ("thead", re.compile(r"\bppu-smi\b", re.I)),
    ("cuda", re.compile(r"nvidia|NVLink", re.I)),
)
_LEGEND_LINES: Final = 16


def parse(report: Report) -> HostFacts:
    """Every link table whose labels are GPU0, GPU1, ... or MLU0, MLU1, ...

    Tables of peer access are `nvidia_p2p`'s.
    """
    parts = []
    for table in find_tables(report, STYLE):
        if is_peer(table, report):
            continue
        vendor = _maker(table, report)
        source = _TOOLS[vendor]
        found = with_legend(matrix(table, source, vendor), report, table)
        parts.append((found, host_nodes(accelerators(table, source, vendor))))
    return joined(parts)


def is_peer(table: Table, report: Report) -> bool:
    """Whether a table's cells are answers about peer access, not links."""
    cells = {cell for row in table.rows.values() for cell in row.cells} - {"X"}
    if cells:
        return cells <= PEER_WORDS
    legend = report.lines[table.last + 1 : table.last + 1 + _LEGEND_LINES]
    return not table.columns and any("Status Ok" in line.text for line in legend)


def _maker(table: Table, report: Report) -> str:
    cells = {cell for row in table.rows.values() for cell in row.cells}
    if table.labels[0].startswith("MLU"):
        return "mlu"
    if "MX" in cells or table.columns[:1] == ("numa",):
        return "metax"
    if any(re.fullmatch(r"NV\d+", cell) for cell in cells) or "memory" in table.columns:
        return "cuda"
    named = {vendor for vendor, name in _NAMED if any(report.find(name))}
    if len(named) < 2:
        return named.pop() if named else "cuda"
    for line in reversed(report.lines[: table.first]):
        for vendor, name in _NAMED:
            if name.search(line.text):
                return vendor
    return "cuda"
