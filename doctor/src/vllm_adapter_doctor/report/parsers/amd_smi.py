"""`amd-smi`: the overview, `list`, `static` and `metric` as text or JSON, and `version`.

Its megabytes are 2**20 bytes. In a partitioned mode each partition is a numbered device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from vllm_adapter.hostfacts.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._common import (
    MIB,
    binary_size,
    is_complete_line,
    normal_bdf,
    number,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._frame import BDF
from vllm_adapter_doctor.report.parsers._json import objects
from vllm_adapter_doctor.report.text import Report

_VERSION: Final = re.compile(r"\bAMD-SMI\s+v?\d|\bAMDSMI Tool:")
_DRIVER: Final = re.compile(r"amdgpu version:\s+(\d+(?:\.\d+)+)(?=\s)", re.I)
_ROCM: Final = re.compile(r"ROCm version:\s+(\d+(?:\.\d+)+)(?=\s)", re.I)
_FIRST: Final = re.compile(rf"(?:^|\|)\s*(?P<bdf>{BDF})\s+(?P<name>[^|]*)\|(?P<right>[^|]*)")
_SECOND: Final = re.compile(
    r"(?:^|\|)\s*(?P<index>\d{1,3})\s+(?:\d+|N/A)\s+(?:\d+|N/A)\s+(?P<partition>[A-Z0-9/]+)\s*\|"
    r"(?P<right>[^|]*)"
)
_POWER: Final = re.compile(r"(?<![\d.])(\d+|N/A)/(\d+)\s*W\b")
_TEMPERATURE: Final = re.compile(r"(?<![\d.])(\d+)\s*°?\s*C\b")
_UNCORRECTED: Final = re.compile(r"(?:°?C|N/A)\s+(\d+)\s+\S")
_MEMORY: Final = re.compile(r"(?<![\d.])(\d+)/(\d+)\s*MB\b")
_PERCENT: Final = re.compile(r"^\s*(\d{1,3})\s*%")
_PARTITION: Final = re.compile(r"[SDTQC]PX/NPS\d")
_PROCESS: Final = re.compile(
    r"(?:^|\|)\s*(?P<index>\d+)\s+(?P<pid>\d+)\s+"
    r"(?P<name>\S+(?: \S+)*?)\s+(?:[\d.]+ [KMG]?B|N/A)\s+"
    r"(?P<vram>[\d.]+ [KMG]?B|N/A)\s+(?:[\d.]+ [KMG]?B|N/A)\s"
)
_BLOCK: Final = re.compile(r"^\s*GPU:\s*(\d+)\s*$")
_PAIR: Final = re.compile(r"^\s*([A-Z][A-Z0-9_]*):(?:\s+(\S.*))?$")
_SOURCE: Final = "amd-smi"
_LEAVES: Final = frozenset(
    "bdf uuid market_name device_id vendor_id target_graphics_version total_vram used_vram size"
    " socket_power current_socket_power gfx_activity hotspot compute_partition"
    " accelerator_partition memory_partition partition_id max_power_limit power_limit"
    " prochot_violation_status ppt_violation_status socket_thermal_violation_status"
    " vr_thermal_violation_status hbm_thermal_violation_status total_uncorrectable_count".split()
)
_VIOLATIONS: Final = {
    "prochot_violation_status": "prochot thermal",
    "ppt_violation_status": "ppt power",
    "socket_thermal_violation_status": "socket thermal",
    "vr_thermal_violation_status": "vr thermal",
    "hbm_thermal_violation_status": "hbm thermal",
}
"""What `metric` calls them, and their names of one kind.

# upstream: amdsmi@rocm-6.4 CHANGELOG.md (amd-smi metric --throttle)
"""


def parse(report: Report) -> HostFacts:
    """Devices by the tool's numbers, the kernel driver where it has a version, and ROCm."""
    report = without_blank_lines(report)
    devices: tuple[Accelerator, ...] = ()
    for index, values in (*_json(report), *_blocks(report)):
        devices = join_accelerators(devices, (_described(index, values),))
    devices = join_accelerators(devices, _overview(report))
    drivers = []
    for position, _ in report.find(_VERSION):
        for line in report.lines[position : position + 3]:
            text = line.text + (" " if report.ended or line is not report.lines[-1] else "")
            for component, pattern in (("amdgpu", _DRIVER), ("rocm", _ROCM)):
                found = pattern.search(text)
                if found:
                    drivers.append(Driver(component, found[1], _SOURCE))
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _overview(report: Report) -> list[Accelerator]:
    """The table of a bare `amd-smi`: a row of place and name, and a row of numbers."""
    found = []
    held: dict[int, tuple[DeviceProcess, ...]] = {}
    if not report.first(_VERSION) and "OAM-ID" not in report.text:
        return []
    for line in report.lines:
        row = _PROCESS.search(line.text)
        if row:
            memory = binary_size(row["vram"])
            process = DeviceProcess(int(row["pid"]), row["name"], memory)
            known = held.get(int(row["index"]), ())
            held[int(row["index"])] = tuple(dict.fromkeys((*known, process)))
    for position, first in report.find(_FIRST):
        below = report.lines[position + 1].text if position + 1 < len(report.lines) else ""
        second = _SECOND.search(below)
        if second:
            found.append(_row(first, second, held))
    return found


def _row(
    first: re.Match[str], second: re.Match[str], held: dict[int, tuple[DeviceProcess, ...]]
) -> Accelerator:
    power, temperature = _POWER.search(first["right"]), _TEMPERATURE.search(first["right"])
    uncorrected = _UNCORRECTED.search(first["right"])
    memory, load = _MEMORY.search(second["right"]), _PERCENT.search(second["right"])
    errors: tuple[str, ...] = ()
    if uncorrected and int(uncorrected[1]):
        errors = (f"{uncorrected[1]} uncorrectable memory errors",)
    index = int(second["index"])
    return Accelerator(
        "rocm",
        index,
        _SOURCE,
        name=first["name"].strip() or None,
        bdf=normal_bdf(first["bdf"]),
        memory_total_bytes=int(memory[2]) * MIB if memory else None,
        memory_used_bytes=int(memory[1]) * MIB if memory else None,
        partition=second["partition"] if _PARTITION.fullmatch(second["partition"]) else None,
        health=Health(
            temperature_c=float(temperature[1]) if temperature else None,
            power_w=float(power[1]) if power and power[1] != "N/A" else None,
            power_cap_w=float(power[2]) if power and power[2] != "0" else None,
            utilization_percent=float(load[1]) if load else None,
            errors=errors,
        ),
        processes=held.get(index, ()),
    )


def _blocks(report: Report) -> Iterator[tuple[int, dict[str, str]]]:
    """`GPU: 0` and what is indented below it; a paste may have lost the indentation."""
    index: int | None = None
    values: dict[str, str] = {}
    for position, line in enumerate(report.lines):
        block = _BLOCK.match(line.text)
        if block:
            if index is not None and values:
                yield index, values
            index, values = int(block[1]), {}
            continue
        pair = _PAIR.match(line.text)
        if index is None or not pair:
            if line.text.strip():
                if index is not None and values:
                    yield index, values
                index, values = None, {}
            continue
        key = pair[1].lower()
        if pair[2] and key in _LEAVES and is_complete_line(report, position):
            values.setdefault(key, pair[2])
    if index is not None and values:
        yield index, values


def _json(report: Report) -> Iterator[tuple[int, dict[str, str]]]:
    for document in objects(report, '"gpu"'):
        entries = document.get("gpu_data") if isinstance(document, dict) else document
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("gpu"), int):
                values: dict[str, str] = {}
                _flatten(entry, values)
                yield entry["gpu"], values


def _flatten(value: Any, into: dict[str, str]) -> None:
    """The leaves that we know; {"value": 1, "unit": "MB"} becomes "1 MB"."""
    for key, inner in value.items():
        if isinstance(inner, dict) and "value" in inner:
            inner = f"{inner['value']} {inner.get('unit', '')}".strip()
        if isinstance(inner, dict):
            _flatten(inner, into)
        elif str(key).lower() in _LEAVES and not isinstance(inner, list):
            into.setdefault(str(key).lower(), str(inner))


def _described(index: int, values: dict[str, str]) -> Accelerator:
    def first(*keys: str) -> float | None:
        found = (number(values.get(key)) for key in keys)
        return next((value for value in found if value is not None), None)

    compute = values.get("accelerator_partition") or values.get("compute_partition") or ""
    partition = f"{compute}/{values.get('memory_partition', '')}"
    known = _PARTITION.fullmatch(partition)
    die = number(values.get("partition_id"))
    if compute == "SPX" or not (known or die):  # `list` names no mode: 0 may be the whole device
        die = None
    arch = re.fullmatch(r"gfx[0-9a-f]+", values.get("target_graphics_version", ""))
    name = values.get("market_name")
    uncorrected = first("total_uncorrectable_count")
    return Accelerator(
        "rocm",
        index,
        _SOURCE,
        name=None if name == "N/A" else name,
        die=None if die is None else int(die),
        bdf=normal_bdf(values.get("bdf", "")),
        uuid=None if values.get("uuid") == "N/A" else values.get("uuid"),
        arch=arch[0] if arch else None,
        memory_total_bytes=binary_size(values.get("total_vram"))
        or binary_size(values.get("size")),
        memory_used_bytes=binary_size(values.get("used_vram")),
        partition=partition if known else None,
        health=Health(
            temperature_c=first("hotspot"),
            power_w=first("socket_power", "current_socket_power"),
            power_cap_w=first("power_limit"),
            utilization_percent=first("gfx_activity"),
            throttle_reasons=tuple(
                word for key, word in _VIOLATIONS.items() if values.get(key) == "ACTIVE"
            ),
            errors=(f"{int(uncorrected)} uncorrectable memory errors",) if uncorrected else (),
        ),
    )
