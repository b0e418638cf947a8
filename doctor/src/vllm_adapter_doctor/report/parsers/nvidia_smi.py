"""`nvidia-smi`: its table, `-L`, MIG instances, processes, and the sentences of its failures.

Other makers' tools draw the same table (see `vendor_tables`), and their devices are listed by
tools of this name: the device's name says who made it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Driver, Health
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._collect_devices import nvidia_component
from vllm_adapter_doctor.report.parsers._common import (
    MIB,
    is_complete_line,
    normal_bdf,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._csv import csv_devices, csv_drivers
from vllm_adapter_doctor.report.parsers._frame import (
    BDF,
    DeviceRow,
    device_rows,
    processes,
    tables,
)
from vllm_adapter_doctor.report.parsers._layouts import other_heads
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

_VENDOR: Final = "cuda"
_SOURCE: Final = "nvidia-smi"
_HEAD: Final = re.compile(
    r"\bNVIDIA-SMI\s+\d|\|\s*GPU\s+Name\s+(?:TCC/WDDM|Persistence-M|Driver-Model)"
)
_LOG: Final = re.compile(r"={5}\s*NVSMI LOG")
_TOOL: Final = re.compile(r"NVIDIA-SMI\s+(\d+(?:\.\d+)+)(?=\s|\|)")
# since release 610 the tool says KMD for the kernel's driver, and UMD for the user's half
_DRIVER: Final = re.compile(r"(?:Driver|KMD) Version\s*:\s*(\d+(?:\.\d+)+[\w.-]*)(?=\s|\|)")
_CUDA: Final = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)(?=\s|\|)")
_ASKED: Final = re.compile(
    r"^\s*(NVIDIA-SMI|DRIVER|KMD|CUDA|CUDA UMD) [Vv]ersion\s*:\s*(\d+(?:\.\d+)+)\s*$"
)
_WINDOWS: Final = re.compile(r"(?:4[5-9]|[5-9]\d)\d\.\d\d")  # WSL has devices since 455
_LISTED: Final = re.compile(r"^\s*GPU (\d+): (\S.*?) \(UUID: (GPU-[0-9A-Fa-f-]{36})\)?\s*$")
_WRITTEN: Final = re.compile(  # as people write it down: the list without its UUIDs
    r"^\s*(?:[-*]\s+)?\**GPU (\d+)\**:\**\s+((?:NVIDIA|Tesla|GeForce|Quadro) [^|(,;:]*?)"
    r"(?:\s*[(,].*)?\s*$"
)
_LISTED_MIG: Final = re.compile(
    r"^\s*MIG ((?:\d+c\.)?\d+g\.\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)\s*$"
)
_MIG: Final = re.compile(
    r"(?:^|\|)\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+\|\s*(\d+)\s*MiB\s*/\s*(\d+)\s*MiB"
)
_ECC: Final = re.compile(r"\|\s*(\d+)\s*\|?\s*$")
_LIBRARY: Final = re.compile(r"NVML library version:\s*(\d+(?:\.\d+)+)\s*$")
_LOST: Final = re.compile(
    rf"device handle for (?i:gpu)\s?(?P<index>\d+)?:?\s*(?P<bdf>{BDF}):\s*(?P<why>.*\S)"
)


def parse(report: Report) -> HostFacts:
    """Devices, drivers and processes of every such output in the text."""
    report = without_blank_lines(report)
    listed = csv_devices(report, "cuda", "nvidia-smi", ("uuid", "gpu_uuid", "pci.bus_id", "name"))
    devices = join_accelerators(_listed(report), listed)
    drivers: list[Driver] = []
    for which, start, stop in tables(report, (_HEAD, _LOG, *other_heads(_VENDOR))):
        if which == 0:
            drivers += _drivers(report, start)
            devices = join_accelerators(devices, _table(report, start, stop))
    for position, found in report.find(_LIBRARY):
        if is_complete_line(report, position):
            drivers.append(Driver("nvml", found[1], "nvidia-smi"))
    drivers += _asked(report)
    drivers += [
        Driver(nvidia_component(version, report.text), version, "nvidia-smi")
        for version in csv_drivers(report)
    ]
    return HostFacts(
        accelerators=_with_lost_devices(report, devices), drivers=tuple(dict.fromkeys(drivers))
    )


def _drivers(report: Report, start: int) -> list[Driver]:
    """Versions of the head. Under WSL the second number is the Windows driver's, which counts."""
    text = report.lines[start].text + (" " if is_complete_line(report, start) else "")
    driver = _DRIVER.search(text)
    smi, cuda = _TOOL.search(text), _CUDA.search(text)
    found = []
    if driver:
        windows = smi and smi[1] != driver[1] and _WINDOWS.fullmatch(driver[1])
        found.append(Driver("windows" if windows else "nvidia", driver[1], "nvidia-smi"))
    if smi:
        found.append(Driver("nvidia-smi", smi[1], "nvidia-smi"))
    if cuda:
        found.append(Driver("cuda", cuda[1], "nvidia-smi"))
    return found


def _asked(report: Report) -> list[Driver]:
    """The lines of `nvidia-smi --version`; its NVML's number is cut to two parts, and left out."""
    said = {
        found[1]: found[2]
        for position, found in report.find(_ASKED)
        if is_complete_line(report, position)
    }
    smi, driver = said.get("NVIDIA-SMI"), said.get("KMD") or said.get("DRIVER")
    if smi is None:
        return []
    windows = driver and driver != smi and _WINDOWS.fullmatch(driver)
    pairs = (
        ("windows" if windows else "nvidia", driver),
        ("nvidia-smi", smi),
        ("cuda", said.get("CUDA UMD") or said.get("CUDA")),
    )
    return [Driver(component, number, "nvidia-smi") for component, number in pairs if number]


def _listed(report: Report) -> tuple[Accelerator, ...]:
    """The lines of `nvidia-smi -L`; MIG instances follow their GPU."""
    found: list[Accelerator] = []
    for position, line in enumerate(report.lines):
        gpu = _LISTED.match(line.text)
        if gpu:
            vendor = maker(gpu[2], "cuda")
            found.append(Accelerator(vendor, int(gpu[1]), "nvidia-smi", name=gpu[2], uuid=gpu[3]))
            continue
        written = _WRITTEN.match(line.text)
        if written and "MiB" not in line.text and is_complete_line(report, position):
            name = written[2].strip("*` ")
            found.append(
                Accelerator(maker(name, "cuda"), int(written[1]), "nvidia-smi", name=name)
            )
            continue
        mig = _LISTED_MIG.match(line.text)
        if mig and found:
            parent = found[-1]
            if parent.partition is None:
                found[-1] = parent = replace(parent, partition="MIG")
            found.append(
                Accelerator(
                    parent.vendor,
                    parent.index,
                    "nvidia-smi",
                    name=parent.name,
                    card=parent.index,
                    die=int(mig[2]),
                    uuid=mig[3],
                    partition=mig[1],
                )
            )
    return _once(found)


def _once(found: list[Accelerator]) -> tuple[Accelerator, ...]:
    listed = {(one.index, one.die) for one in found if one.uuid}
    return tuple(
        {
            (one.index, one.die, one.uuid): one
            for one in found
            if one.uuid or (one.index, one.die) not in listed
        }.values()
    )


def _table(report: Report, start: int, stop: int) -> tuple[Accelerator, ...]:
    held = processes(report, start, stop)
    found = []
    for row in device_rows(report, start, stop):
        made_by = maker(row.name, _VENDOR)
        memory = row.memory
        found.append(
            Accelerator(
                made_by,
                row.index,
                _SOURCE,
                name=None if "ERR!" in row.name else row.name or None,
                bdf=row.bdf,
                memory_total_bytes=memory[1] if memory else None,
                memory_used_bytes=memory[0] if memory else None,
                partition="MIG" if any(_enabled(line) for line in row.below[1:]) else None,
                health=_health(row),
                processes=held.get(row.index, ()),
            )
        )
    return (*found, *_instances(report, start, stop, found))


def _enabled(line: str) -> bool:
    return re.search(r"\|\s*Enabled\*?\s*\|?\s*$", line) is not None


def _health(row: DeviceRow) -> Health:
    health = row.health()
    errors = list(health.errors)
    ecc = _ECC.search(row.right) if row.closed else None
    if ecc and int(ecc[1]):
        errors.append(f"{int(ecc[1])} uncorrectable memory errors since the driver was loaded")
    return replace(health, errors=tuple(errors))


def _instances(
    report: Report, start: int, stop: int, cards: list[Accelerator]
) -> list[Accelerator]:
    """MIG instances: the table names neither profile nor UUID, so `-L` tells more."""
    found = []
    for line in report.lines[start:stop]:
        row = _MIG.search(line.text)
        card = next((one for one in cards if row and one.index == int(row[1])), None)
        if row and card:
            found.append(
                Accelerator(
                    card.vendor,
                    card.index,
                    card.source,
                    name=card.name,
                    card=card.index,
                    die=int(row[4]),
                    memory_total_bytes=int(row[6]) * MIB,
                    memory_used_bytes=int(row[5]) * MIB,
                    partition=f"GI {row[2]} CI {row[3]}",
                )
            )
    return found


def _with_lost_devices(
    report: Report, devices: tuple[Accelerator, ...]
) -> tuple[Accelerator, ...]:
    """The devices, with those that the tool says it can no longer reach."""
    for _, found in report.find(_LOST):
        bdf = normal_bdf(found["bdf"])
        known = next((one for one in devices if one.bdf == bdf), None)
        error = f"nvidia-smi cannot reach the device: {found['why']}"
        if known:
            lost = replace(known.health, errors=(*known.health.errors, error))
            new = replace(known, health=lost)
            devices = tuple(new if one is known else one for one in devices)
        elif found["index"]:
            lost = Health(errors=(error,))
            device = Accelerator("cuda", int(found["index"]), "nvidia-smi", bdf=bdf, health=lost)
            devices = join_accelerators(devices, (device,))
    return devices
