"""`npu-smi info -t topo`: HCCS, HCCS_SW, SIO and UB links, and the CPUs next to each NPU.

# upstream: Ascend npu-smi prints `Phy-ID<n>` for 910_93 (A3), where card = n / 2 and chip = n % 2,
# upstream: and no CPU Affinity there; a 950 (A5) has network cards as columns too
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._matrix import MatrixStyle, find_tables
from vllm_adapter_doctor.report.parsers._matrix_cells import CellPatterns
from vllm_adapter_doctor.report.parsers._matrix_facts import (
    accelerators,
    joined,
    matrix,
    with_legend,
)
from vllm_adapter_doctor.report.text import Report

_SOURCE: Final = "npu-smi info -t topo"
_STYLE: Final = MatrixStyle(
    device=r"(?:NPU|Phy-ID)\d+(?!\d)",
    words=CellPatterns(r"HCCS_SW|HCCS|NODE|SYS|PHB|PXB|PIX|SIO|UB|NA|X"),
    nics=True,
    affinity_alone=True,
)
_DIES_OF_A3: Final = 2


def parse(report: Report) -> HostFacts:
    """Every table whose labels are NPU0, NPU1, ... or Phy-ID0, Phy-ID1, ..."""
    parts = []
    for table in find_tables(report, _STYLE):
        found = with_legend(matrix(table, _SOURCE, "ascend"), report, table)
        devices = accelerators(table, _SOURCE, "ascend")
        if table.labels[0].startswith("Phy-ID"):
            devices = tuple(_die(device) for device in devices)
        parts.append((found, devices))
    return joined(parts)


def _die(device: Accelerator) -> Accelerator:
    card, die = divmod(device.index, _DIES_OF_A3)
    return replace(device, index=card, card=card, die=die)
