"""`nvidia-smi topo -p2p r|w|rw|n|a|p`: what the driver says of peer access, pair by pair.

It is no table of distances: OK allows access, GNS, CNS, TNS, NS, DR and U do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._matrix import MatrixStyle, find_tables
from vllm_adapter_doctor.report.parsers._matrix_cells import CellPatterns
from vllm_adapter_doctor.report.parsers._matrix_facts import accelerators, joined, matrix
from vllm_adapter_doctor.report.parsers.nvidia_topo import PEER_WORDS, is_peer
from vllm_adapter_doctor.report.text import Report

_SOURCE: Final = "nvidia-smi topo -p2p"
_STYLE: Final = MatrixStyle(
    device=r"GPU\d+(?!\d)",
    words=CellPatterns("|".join(sorted(PEER_WORDS | {"X"}, key=len, reverse=True)), others=False),
)


def parse(report: Report) -> HostFacts:
    """Every table of peer access, with kind "peer"."""
    parts = []
    for table in find_tables(report, _STYLE):
        if is_peer(table, report):
            found = matrix(table, _SOURCE, "cuda", "peer")
            devices = accelerators(replace(table, columns=()), _SOURCE, "cuda")
            parts.append((found, devices))
    return joined(parts)
