"""`hl-smi topo -c -N`: CPUs and NUMA node of each Gaudi, by module id; it has no link table.

A module id is the place on the board, not the device's number: where the report also shows
devices, `hl-smi -Q index,module_id -f csv` must tell which is which.
"""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._common import cpu_list
from vllm_adapter_doctor.report.parsers._matrix_cells import is_complete_cpu_list, read_values
from vllm_adapter_doctor.report.text import Report

_SOURCE: Final = "hl-smi topo"
_HEAD: Final = re.compile(r"\bmodID\b(?P<cpu>\s+CPU Affinity)?(?P<numa>\s+NUMA Affinity)?\s*$")
_ROW: Final = re.compile(r"(?<![\w.,-])(?P<module>\d{1,2})(?P<tail>\s+\d.*)$")
_RULE: Final = re.compile(r"-{3,}[\s-]*$")
_DEVICES: Final = re.compile(r"HL-SMI Version|\bAIP\b")


def parse(report: Report) -> HostFacts:
    """The devices of the first such table; empty where their numbers cannot be known."""
    head = next(report.find(_HEAD), None)
    if not head:
        return HostFacts()
    columns = tuple(name for name, text in head[1].groupdict().items() if text)
    numbers = _numbers(report)
    if not numbers and any(report.find(_DEVICES)):
        return HostFacts()
    found: dict[int, Accelerator] = {}
    for at in range(head[0] + 1, len(report.lines)):
        line = report.lines[at].text
        row = _ROW.search(line)
        if not row and _RULE.search(line):
            continue
        module = int(row["module"]) if row else -1
        if not row or module in found:
            break
        cut = not report.ended and at == len(report.lines) - 1
        values = read_values(row["tail"], columns, None, cut)
        index = numbers.get(module) if numbers else module
        if index is not None and values:
            found[module] = _device(index, values)
    return HostFacts(accelerators=tuple(found.values()))


def _device(index: int, values: dict[str, str]) -> Accelerator:
    cpus = values.get("cpu", "")
    whole = not cpus or is_complete_cpu_list(cpus)
    return Accelerator(
        "gaudi",
        index,
        _SOURCE,
        numa_nodes=cpu_list(values.get("numa", "")) or (),
        cpus=(cpu_list(cpus) or ()) if whole else (),
        cpus_truncated=not whole,
    )


def _numbers(report: Report) -> dict[int, int]:
    """Device numbers by module id, from the CSV that names both."""
    numbers: dict[int, int] = {}
    heads: list[str] = []
    for line in report.lines:
        fields = [field.strip() for field in line.text.split(",")]
        if "index" in fields and "module_id" in fields:
            heads = fields
        elif heads and len(fields) == len(heads):
            named = dict(zip(heads, fields, strict=True))
            if named["index"].isdecimal() and named["module_id"].isdecimal():
                numbers[int(named["module_id"])] = int(named["index"])
    return numbers
