"""`cnmon` of Cambricon, whose older releases print the driver where newer print the bus."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.host.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.host.merge import join_accelerators
from vllm_adapter.host.parsers._common import MIB, dense, normal_bdf, with_end
from vllm_adapter.host.parsers._frame import BDF, tables
from vllm_adapter.host.text import Report

_HEADS: Final = (
    re.compile(r"\bCNMON\s+v\d"),
    re.compile(r"\b(?:NVIDIA-SMI|AMD-SMI|MX-SMI)\s+\d|\bHL-SMI Version:|={5}\s*NVSMI LOG"),
)
_DRIVER: Final = re.compile(r"\bDriver v(\d+(?:\.\d+)+)(?=\s|\|)")
_FIRST: Final = re.compile(
    rf"(?:^|\|)\s*(?P<index>\d+)\s+(?:/|\d+)\s+(?P<name>MLU\S+)\s+\S+\s*\|\s*"
    rf"(?:(?P<bdf>{BDF})|O(?:n|ff)\s+v(?P<driver>\d+(?:\.\d+)+))\s*\|\s*(?P<load>\d{{1,3}})\s*%"
)
_SECOND: Final = re.compile(
    r"(?P<temperature>\d+)\s*C\s+(?P<power>\d+)\s*W\s*/\s*(?P<cap>\d+)\s*W\b\s*\|?"
    r"(?:\s*(?P<used>\d+)\s*MiB\s*/\s*(?P<total>\d+)\s*MiB\b)?"
)
_PROCESS: Final = re.compile(
    r"(?:^|\|)\s*(?P<index>\d+)\s+(?:/|\d+)\s+(?P<pid>\d+)\s+"
    r"(?P<name>\S+(?: \S+)*?)\s+(?P<mib>\d+)\s*MiB\b"
)
_SOURCE: Final = "cnmon"


def parse(report: Report) -> HostFacts:
    """Cards with their readings, and the driver's version."""
    report = dense(report)
    devices: tuple[Accelerator, ...] = ()
    drivers: list[Driver] = []
    for which, start, stop in tables(report, _HEADS):
        if which:
            continue
        found = _DRIVER.search(with_end(report, start))
        if found:
            drivers.append(Driver("cambricon", found[1], _SOURCE))
        lines = [line.text for line in report.lines[start:stop]]
        for position, text in enumerate(lines):
            first = _FIRST.search(text)
            if first:
                if first["driver"]:
                    drivers.append(Driver("cambricon", first["driver"], _SOURCE))
                second = _SECOND.search(lines[position + 1]) if lines[position + 1 :] else None
                device = _device(first, second, lines)
                devices = join_accelerators(devices, (device,))
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _device(first: re.Match[str], second: re.Match[str] | None, lines: list[str]) -> Accelerator:
    rows = [row for line in lines if (row := _PROCESS.search(line))]
    total = second["total"] if second else None
    return Accelerator(
        "mlu",
        int(first["index"]),
        _SOURCE,
        name=first["name"],
        bdf=normal_bdf(first["bdf"] or ""),
        memory_total_bytes=int(total) * MIB if total else None,
        memory_used_bytes=int(second["used"]) * MIB if second and total else None,
        health=Health(
            temperature_c=float(second["temperature"]) if second else None,
            power_w=float(second["power"]) if second else None,
            power_cap_w=float(second["cap"]) if second else None,
            utilization_percent=float(first["load"]),
        ),
        processes=tuple(
            dict.fromkeys(
                DeviceProcess(int(row["pid"]), row["name"], int(row["mib"]) * MIB)
                for row in rows
                if row["index"] == first["index"]
            )
        ),
    )
