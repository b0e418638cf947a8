"""`xpu-smi topology -m`: Intel GPUs by device and tile (`GPU 0/1`), with or without bars."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._matrix import MatrixStyle, find_tables
from vllm_adapter_doctor.report.parsers._matrix_cells import CellPatterns
from vllm_adapter_doctor.report.parsers._matrix_facts import accelerators, joined, matrix, numbers
from vllm_adapter_doctor.report.text import Report

_SOURCE: Final = "xpu-smi topology -m"
_STYLE: Final = MatrixStyle(
    device=r"GPU\s*\d+/\d+(?!\d)",
    words=CellPatterns(
        r"XL\d+(?!\d)|XL\*|NODE|SYS|MDF|PHB|PXB|PIX|S", self_word="S", others=False
    ),
    affinity_alone=True,
)


def parse(report: Report) -> HostFacts:
    """Every such table; tiles are dies of one device where a device has several."""
    parts = []
    for table in find_tables(report, _STYLE):
        devices = accelerators(table, _SOURCE, "xpu")
        tiles = [numbers(label)[1] for label in table.labels if label]
        if any(tiles):
            devices = tuple(
                replace(device, card=device.index, die=tile)
                for device, tile in zip(devices, tiles, strict=True)
            )
        parts.append((matrix(table, _SOURCE, "xpu"), devices))
    return joined(parts)
