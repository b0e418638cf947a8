"""`rocminfo`: the GPU agents that ROCm's runtime sees, with their device code and units.

Its numbers are the runtime's: variables such as ROCR_VISIBLE_DEVICES change them, so that they
are no tool's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Driver
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import derives
from vllm_adapter_doctor.report.parsers._common import is_complete_line, without_blank_lines
from vllm_adapter_doctor.report.parsers._display import in_processor
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

SOURCE: Final = "rocminfo"
_VENDOR: Final = "rocm"
_MODULE: Final = re.compile(r"\bROCk module version (\d+(?:\.\d+)+) is loaded")
_AGENT: Final = re.compile(r"^\s*Agent (\d+)\s*$")
_PAIR: Final = re.compile(r"^\s*([A-Z][A-Za-z0-9 .()/]*?)\s*:\s*(\S.*)$")
_ARCH: Final = re.compile(r"gfx[0-9a-f]{3,5}")
_NO_UUID: Final = "GPU-XX"
"""What is printed for each card that has none."""
_SIZE: Final = re.compile(r"(\d+)\(0x[0-9a-f]+\) KB")


def parse(report: Report) -> HostFacts:
    """GPU agents in their order, and the kernel driver's version where it has one."""
    report = without_blank_lines(report)
    devices: list[Accelerator] = []
    for values in _agents(report):
        arch = _ARCH.fullmatch(values.get("Name", "").partition(":")[0])
        if values.get("Device Type") != "GPU" or arch is None:
            continue
        name = values.get("Marketing Name")
        shared = values.get("Memory Properties") == "APU"
        units, size = values.get("Compute Unit", ""), _SIZE.match(values.get("Size", ""))
        vendor = maker(name, _VENDOR)
        devices.append(
            Accelerator(
                vendor if derives(vendor, _VENDOR) else _VENDOR,
                len(devices),
                SOURCE,
                name=name,
                uuid=None if values.get("Uuid") == _NO_UUID else values.get("Uuid"),
                arch=arch[0],
                memory_total_bytes=int(size[1]) * 1024 if size and not shared else None,
                integrated=in_processor(_VENDOR, name or "", None),
                unified_memory=True if shared else None,
                compute_units=int(units) if units.isdigit() else None,
            )
        )
    drivers = [Driver("amdgpu", found[1], SOURCE) for _, found in report.find(_MODULE)]
    return HostFacts(accelerators=tuple(devices), drivers=tuple(dict.fromkeys(drivers)))


def _agents(report: Report) -> Iterator[dict[str, str]]:
    """The first value of each key of each agent; the first size is that of its first pool."""
    seen: set[str] = set()
    values: dict[str, str] | None = None
    for position, line in enumerate(report.lines):
        agent = _AGENT.match(line.text)
        if agent:
            if values:
                yield values
            values = None if agent[1] in seen else {}  # a second run of the tool
            seen.add(agent[1])
            continue
        pair = _PAIR.match(line.text) if values is not None else None
        if pair and values is not None and is_complete_line(report, position):
            values.setdefault(pair[1], pair[2])
    if values:
        yield values
