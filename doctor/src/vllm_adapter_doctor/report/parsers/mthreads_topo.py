"""Grids of `Device 0`, `Device 1`, ... with the maker in a corner: `gpustack-runtime topo`.

# upstream: gpustack/runtime gpustack_runtime/cmds/detector.py: format_topology_table
"""

from __future__ import annotations

from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import by_alias
from vllm_adapter_doctor.report.parsers._matrix import MatrixStyle, find_tables
from vllm_adapter_doctor.report.parsers._matrix_cells import CellPatterns
from vllm_adapter_doctor.report.parsers._matrix_facts import accelerators, joined, matrix
from vllm_adapter_doctor.report.text import Report

_SOURCE: Final = "gpustack-runtime topo"
_STYLE: Final = MatrixStyle(
    device=r"Device\s+\d+(?!\d)", words=CellPatterns(r"NODE|SYS|PHB|PXB|PIX|LINK|N/A|X")
)


def parse(report: Report) -> HostFacts:
    """Every grid whose corner names a maker; without one nobody knows whose devices they are."""
    parts = []
    for table in find_tables(report, _STYLE):
        words = table.head.lower().replace("|", " ").split()
        vendor = by_alias().get(words[-1]) if words else None
        if vendor:
            parts.append((matrix(table, _SOURCE, vendor), accelerators(table, _SOURCE, vendor)))
    return joined(parts)
