"""`numactl -H`: nodes with their CPUs, memory and distances."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts, NumaNode
from vllm_adapter_doctor.report.parsers._common import MIB, cpu_list, is_complete_line
from vllm_adapter_doctor.report.text import Report

_NODE: Final = re.compile(r"^\s*node\s+(\d{1,4})\s+(cpus|size):\s*(.*)$")
_AVAILABLE: Final = re.compile(r"^\s*available:\s*(\d+)\s+nodes?\b")
_DISTANCES: Final = re.compile(r"^\s*node distances:")
_HEAD: Final = re.compile(r"^\s*node((?:\s+\d{1,4})+)\s*$")
_ROW: Final = re.compile(r"^\s*(\d{1,4}):((?:\s+\d{1,3})+)\s*$")


def parse(report: Report) -> HostFacts:
    """The nodes of the first table; a node whose list of CPUs was cut is left out."""
    cpus: dict[int, tuple[int, ...] | None] = {}
    sizes: dict[int, int] = {}
    order: tuple[int, ...] = ()
    rows: dict[int, tuple[int, ...]] = {}
    tables = 0
    distances = False
    for position, line in enumerate(report.lines):
        if not is_complete_line(report, position):
            break
        tables += _AVAILABLE.match(line.text) is not None
        if tables > 1:
            break
        if _DISTANCES.match(line.text):
            distances = True
        elif node := _NODE.match(line.text):
            number = int(node[1])
            if node[2] == "cpus":
                cpus.setdefault(number, cpu_list(node[3]))
            elif size := re.fullmatch(r"(\d{1,9}) MB", node[3].strip()):
                sizes.setdefault(number, int(size[1]) * MIB)
        elif distances and not order and (head := _HEAD.match(line.text)):
            order = tuple(int(word) for word in head[1].split())
        elif order and (row := _ROW.match(line.text)):
            rows.setdefault(int(row[1]), tuple(int(word) for word in row[2].split()))
    known = {number: listed for number, listed in cpus.items() if listed is not None}
    whole = order == tuple(sorted(cpus)) and all(len(row) == len(order) for row in rows.values())
    nodes = tuple(
        NumaNode(n, known[n], sizes.get(n), rows.get(n, ()) if whole else ())
        for n in sorted(known)
    )
    cut = tuple(
        ("numa", f"numactl -H: node {number} cpus")
        for number, listed in cpus.items()
        if listed is None
    )
    return HostFacts(numa=nodes, unknown=cut)
