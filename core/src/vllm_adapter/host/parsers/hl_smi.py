"""`hl-smi` of Intel Gaudi: its table, the list of `-L`, and the CSV of `-Q ... -f csv`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vllm_adapter.host.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.host.merge import join_accelerators
from vllm_adapter.host.parsers._common import MIB, dense, is_whole, normal_bdf
from vllm_adapter.host.parsers._csv import csv_devices
from vllm_adapter.host.parsers._frame import BDF, device_rows, tables
from vllm_adapter.host.text import Report

_HEADS: Final = (
    re.compile(r"\bHL-SMI Version:|\|\s*AIP\s+Name\b"),
    re.compile(r"\b(?:NVIDIA-SMI|AMD-SMI|MX-SMI)\s+\d|={5}\s*NVSMI LOG"),
)
_DRIVER: Final = re.compile(r"(?<!Nic )Driver Version:\s+(\d+(?:\.\d+)+-[0-9a-f]{7,})(?=\s|\|)")
_FIRMWARE: Final = re.compile(r"HL-SMI Version:\s+hl-\S*?fw-(\d+(?:\.\d+)+)(?=\s|\|)")
_PROCESS: Final = re.compile(
    r"(?:^|\|)\s*(?P<index>\d+)\s+(?P<pid>\d+)\s+\S+\s+"
    r"(?P<name>\S+(?: \S+)*?)\s+(?P<mib>\d+)\s*Mi[Bb]\b"
)
_LISTED: Final = re.compile(rf"^\s*\[(?P<index>\d+)\] AIP \(\w+\) (?P<bdf>{BDF})\s*$")
_KEYS: Final = re.compile(r"^\s*(Product Name|Module status|AIP UUID)\s*:\s+(\S.*)$")
_SOURCE: Final = "hl-smi"


def parse(report: Report) -> HostFacts:
    """Devices by AIP number, which follow no order of bus addresses; driver and firmware."""
    report = dense(report)
    devices = csv_devices(report, "gaudi", _SOURCE, ("module_id", "bus_id"))
    drivers: list[Driver] = []
    for which, start, stop in tables(report, _HEADS):
        if which:
            continue
        devices = join_accelerators(devices, _table(report, start, stop))
        for line in report.lines[start : min(start + 3, stop)]:
            text = line.text + ("|" if report.ended or line is not report.lines[-1] else "")
            driver, firmware = _DRIVER.search(text), _FIRMWARE.search(text)
            if driver:
                drivers.append(Driver("habanalabs", driver[1], _SOURCE))
            if firmware:
                drivers.append(Driver("habanalabs-firmware", firmware[1], _SOURCE))
    return HostFacts(
        accelerators=join_accelerators(devices, _listed(report)),
        drivers=tuple(dict.fromkeys(drivers)),
    )


def _listed(report: Report) -> list[Accelerator]:
    """The blocks of `hl-smi -L`."""
    found: list[Accelerator] = []
    for position, line in enumerate(report.lines):
        head = _LISTED.match(line.text)
        if head:
            bdf = normal_bdf(head["bdf"])
            found.append(Accelerator("gaudi", int(head["index"]), _SOURCE, bdf=bdf))
        pair = _KEYS.match(line.text) if found and is_whole(report, position) else None
        if pair and pair[1] == "Product Name":
            found[-1] = replace(found[-1], name=found[-1].name or pair[2])
        elif pair and pair[1] == "AIP UUID":
            found[-1] = replace(found[-1], uuid=found[-1].uuid or pair[2])
        elif pair:
            found[-1] = replace(found[-1], health=Health(status=pair[2]))
    return found


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
        events = re.search(r"\|\s*([1-9]\d*)\s*\|?\s*$", row_.right) if row_.closed else None
        if events:
            error = f"{events[1]} uncorrectable memory errors"
            health = replace(health, errors=(*health.errors, error))
        found.append(
            Accelerator(
                "gaudi",
                row_.index,
                _SOURCE,
                name=row_.name or None,
                bdf=row_.bdf,
                memory_total_bytes=memory[1] if memory else None,
                memory_used_bytes=memory[0] if memory else None,
                health=health,
                processes=held.get(row_.index, ()),
            )
        )
    return found
