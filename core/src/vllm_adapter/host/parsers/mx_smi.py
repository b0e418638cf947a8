"""`mx-smi` of MetaX: its table of several ages, `-L`, and processes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vllm_adapter.host.device_facts import Accelerator, DeviceProcess, Driver
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.host.merge import join_accelerators
from vllm_adapter.host.parsers._common import MIB, dense, normal_bdf, with_end
from vllm_adapter.host.parsers._frame import BDF, device_rows, tables
from vllm_adapter.host.text import Report

_HEADS: Final = (
    re.compile(r"\b(?:MX|HT)-SMI\s+\d"),  # HT-SMI: the same tool for boards sold as Mars
    re.compile(r"\b(?:NVIDIA-SMI|AMD-SMI)\s+\d|\bHL-SMI Version:|={5}\s*NVSMI LOG"),
)
_VERSIONS: Final = (
    ("metax", re.compile(r"Kernel Mode Driver Version:\s+(\d+(?:\.\d+)+)(?=\s|\|)")),
    ("maca", re.compile(r"MACA Version:\s+(\d+(?:\.\d+)+)(?=\s|\|)")),
)
_LISTED: Final = re.compile(
    rf"^\s*GPU#(?P<index>\d+)\s+(?P<name>\S+(?: \S+)*?)\s+(?P<bdf>{BDF})"
    r"(?:\s+(?P<state>[A-Z][^(]*?)\s*(?:\(UUID: (?P<uuid>[\w-]+)\))?)?\s*$"
)
_PROCESS: Final = re.compile(
    r"(?:^|\|)\s*(?P<index>\d+)\s+(?P<pid>\d+)\s+"
    r"(?P<name>\S+(?: \S+)*?)\s{2,}(?P<mib>\d+)(?:\s*MiB)?\s*\|"
)
_SOURCE: Final = "mx-smi"


def parse(report: Report) -> HostFacts:
    """Devices with the state that the tool names, the kernel driver and MACA."""
    report = dense(report)
    devices: tuple[Accelerator, ...] = ()
    drivers: list[Driver] = []
    for which, start, stop in tables(report, _HEADS):
        if which:
            continue
        devices = join_accelerators(devices, _table(report, start, stop))
        for position in range(start, min(start + 2, stop)):
            for component, pattern in _VERSIONS:
                found = pattern.search(with_end(report, position))
                if found:
                    drivers.append(Driver(component, found[1], _SOURCE))
    listed = []
    for _, found in report.find(_LISTED):
        device = Accelerator(
            "metax",
            int(found["index"]),
            _SOURCE,
            name=found["name"],
            bdf=normal_bdf(found["bdf"]),
            uuid=found["uuid"],
        )
        # A cut word would be another state.
        health = replace(device.health, status=found["state"] if found["uuid"] else None)
        listed.append(replace(device, health=health))
    return HostFacts(
        accelerators=join_accelerators(devices, listed), drivers=tuple(dict.fromkeys(drivers))
    )


def _table(report: Report, start: int, stop: int) -> list[Accelerator]:
    held: dict[int, tuple[DeviceProcess, ...]] = {}
    for line in report.lines[start:stop]:
        row = _PROCESS.search(line.text)
        if row:
            process = DeviceProcess(int(row["pid"]), row["name"], int(row["mib"]) * MIB)
            known = held.get(int(row["index"]), ())
            held[int(row["index"])] = tuple(dict.fromkeys((*known, process)))
    found = []
    for row_ in device_rows(report, start, stop):
        memory, health = row_.memory, row_.health()
        state = re.search(
            r"\|\s*([A-Z][A-Za-z ]*?)\s*\|?\s*$", row_.below[0] if row_.below else ""
        )
        if state and (row_.below[0].rstrip().endswith("|")):
            health = replace(health, status=state[1])
        found.append(
            Accelerator(
                "metax",
                row_.index,
                _SOURCE,
                name=row_.name or None,
                bdf=row_.bdf,
                memory_total_bytes=memory[1] if memory else None,
                memory_used_bytes=memory[0] if memory else None,
                health=replace(health, utilization_percent=_load(row_.right)),
                processes=held.get(row_.index, ()),
            )
        )
    return found


def _load(right: str) -> float | None:
    found = re.search(r"\|\s*(\d{1,3})\s*%", right)
    return float(found[1]) if found else None
