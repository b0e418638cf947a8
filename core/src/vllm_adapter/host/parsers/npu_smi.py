"""`npu-smi info` of every Ascend generation, `info -m`, and `info -t board`.

A chip is two rows: NPU, name, health; then chip, bus address, memory. A3 boards carry two chips, a
310P card has no HBM column, and A5 prints neither chip nor bus address. Megabytes are 2**20 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vllm_adapter.host.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.host.merge import join_accelerators
from vllm_adapter.host.parsers._common import MIB, dense, is_whole, normal_bdf, with_end
from vllm_adapter.host.text import Report

SOURCE: Final = "npu-smi info"
_VERSION: Final = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*([\w.+-]+)(?=\s)")
_HEAD: Final = re.compile(r"\bnpu-smi\s.*Version:")
_NAMED: Final = re.compile(
    r"(?:^|\|)\s*(?P<npu>\d{1,5})\s*\|?\s+(?P<name>(?:Ascend\s?)?\d{3}[\w-]*)\s*\|?\s+"
    r"(?P<health>OK|Warning|Alarm|Critical|UNKNOWN|Offline|NA)\s*\|\s*"
    r"(?P<power>\d+(?:\.\d+)?|-|NA)\s+(?P<temperature>\d+|-|NA)\s"
)
_PLACED: Final = re.compile(
    r"(?:^|\|)\s*(?P<chip>\d{1,3})?(?:\s+(?P<device>\d{1,3}|NA))?\s*\|[\s|]*"
    r"(?P<bdf>[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|NA)\s*\|\s*"
    r"(?P<load>\d+|-|NA)\s+(?P<memory>.*)$"
)
_OF: Final = re.compile(r"(\d+)\s*/\s*(\d+)(?=\s|\|)")
_COLUMNS: Final = re.compile(r"Memory-Usage\(MB\)(?P<hbm>\s+HBM-Usage)?")
_PROCESSES: Final = re.compile(r"Process id\s*\|\s*Process name", re.I)
_PROCESS: Final = re.compile(
    r"(?:^|\|)\s*(?P<npu>\d+)(?:\s+(?P<chip>\d+))?\s*\|\s*(?P<pid>\d+)\s*\|\s*(?P<name>[^|]*?)\s*\|"
    r"\s*(?P<memory>\d+)\s*\|"
)
_MAP_HEAD: Final = re.compile(r"NPU ID\s+(?:Slot ID\s+)?Chip ID\s+Chip (?:Logic ID|Phy-ID)")
_MAP_ROW: Final = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+|-)\s+(\S.*)$")
_SLOT_ROW: Final = re.compile(r"^\s*(\d+)\s+\d+\s+(\d+)\s+(\d+|-)\s+([A-Za-z]\S*)\s*$")
_BOARD: Final = re.compile(
    r"^\s*(NPU ID|Chip ID|Chip Name|Chip Type|NPU Name|PCIe Bus Info|Software Version"
    r"|Firmware Version)\s*:\s*(\S.*)$"
)


def parse(report: Report) -> HostFacts:
    """Every chip once, in the order of NPU and chip; `logical` counts them, or is as `-m` says."""
    report = dense(report)
    devices = join_accelerators(_mapped(report), _board(report))
    drivers: list[Driver] = []
    for position, _ in report.find(_HEAD):
        found = _VERSION.search(with_end(report, position))
        if found:
            drivers.append(Driver("ascend", found[2], "npu-smi"))
    devices = _joined(devices, _table(report))
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _joined(
    mapped: tuple[Accelerator, ...], table: tuple[Accelerator, ...]
) -> tuple[Accelerator, ...]:
    """The table's chips with the logical numbers of `-m`, where that was printed too."""
    if not mapped or not table:
        return table or mapped
    numbers = {(one.index, one.die or 0): one.logical for one in mapped}
    table = tuple(
        replace(one, logical=numbers.get((one.index, one.die or 0), one.logical)) for one in table
    )
    return join_accelerators(table, mapped)


def _table(report: Report) -> tuple[Accelerator, ...]:
    found: dict[tuple[int, int], Accelerator] = {}
    lines = report.lines
    in_processes = False
    named: re.Match[str] | None = None
    pairs, from_start = 2, False
    for position, line in enumerate(lines):
        if _PROCESSES.search(line.text):
            in_processes, named = True, None
            continue
        if _HEAD.search(line.text):
            in_processes = False
        if in_processes:
            _add_process(found, line.text)
            continue
        columns = _COLUMNS.search(line.text)
        if columns:
            from_start = from_start or not found
            pairs = 2 if columns["hbm"] else 1
        head = _NAMED.search(line.text)
        if head:
            named = head
            continue
        placed = _PLACED.search(line.text) if named else None
        if named and placed:
            whole = is_whole(report, position)
            device = _device(named, placed, whole, pairs)
            key = (device.index, device.die or 0)
            found.setdefault(key, device)
            named = None
    chips = [found[key] for key in sorted(found)]
    if not from_start:
        return tuple(chips)  # the table's beginning is lost, and with it who is first
    return tuple(replace(one, logical=place) for place, one in enumerate(chips))


def _device(named: re.Match[str], placed: re.Match[str], whole: bool, pairs: int) -> Accelerator:
    name = named["name"]
    memory = _OF.findall(placed["memory"] + ("|" if whole else ""))
    # The last pair is HBM, or the DDR of a 310P; "0 / 0" is a memory that the chip has not.
    last = memory[-1] if len(memory) >= pairs else ("0", "0")
    used, total = int(last[0]), int(last[1])
    arch = name.lower().removeprefix("ascend").strip()
    return Accelerator(
        "ascend",
        int(named["npu"]),
        SOURCE,
        name=name,
        card=int(named["npu"]),
        die=int(placed["chip"]) if placed["chip"] else None,
        bdf=normal_bdf(placed["bdf"]),
        # "Ascend910" without more is every chip of the family.
        arch=arch if arch not in ("910", "310", "") else None,
        memory_total_bytes=total * MIB if total else None,
        memory_used_bytes=used * MIB if 0 < total >= used else None,
        health=Health(
            status=named["health"],
            temperature_c=_number(named["temperature"]),
            power_w=_number(named["power"]),
            utilization_percent=_number(placed["load"]),
        ),
    )


def _number(text: str) -> float | None:
    return None if text in ("-", "NA") else float(text)


def _add_process(found: dict[tuple[int, int], Accelerator], text: str) -> None:
    row = _PROCESS.search(text)
    key = (int(row["npu"]), int(row["chip"] or 0)) if row else None
    if row and key in found:
        process = DeviceProcess(int(row["pid"]), row["name"] or None, int(row["memory"]) * MIB)
        device = found[key]
        if process not in device.processes:
            found[key] = replace(device, processes=(*device.processes, process))


def _mapped(report: Report) -> tuple[Accelerator, ...]:
    """The table of `npu-smi info -m`; a row without logical number is the board's controller."""
    found = list(_mapped_by_slot(report))
    for start, head in report.find(_MAP_HEAD):
        if "Logic" not in head[0] or "Slot" in head[0]:
            continue  # physical numbers are not a program's
        for position in range(start + 1, len(report.lines)):
            row = _MAP_ROW.match(report.lines[position].text)
            if not row:
                break
            if row[3] != "-" and row[4].lower() != "mcu":
                name = row[4] if is_whole(report, position) else None
                found.append(_chip(int(row[1]), int(row[2]), int(row[3]), name))
    return tuple(dict.fromkeys(found))


def _mapped_by_slot(report: Report) -> Iterator[Accelerator]:
    """The table of A5: one chip an NPU, which this tool's other tables do not number."""
    for start, head in report.find(_MAP_HEAD):
        if "Logic" in head[0] or "Slot" not in head[0]:
            continue
        for position in range(start + 1, len(report.lines)):
            row = _SLOT_ROW.match(report.lines[position].text)
            if not row:
                break
            if row[4].lower() != "mcu" and is_whole(report, position):
                yield _chip(int(row[1]), int(row[2]) or None, None, row[4])


def _chip(npu: int, chip: int | None, logical: int | None, name: str | None) -> Accelerator:
    arch = (name or "").lower().removeprefix("ascend").strip()
    return Accelerator(
        "ascend",
        npu,
        SOURCE,
        name=name,
        logical=logical,
        card=npu,
        die=chip,
        arch=arch if arch not in ("910", "310", "") else None,
    )


def _board(report: Report) -> tuple[Accelerator, ...]:
    """The key and value lines of `npu-smi info -t board -i N [-c M]`."""
    values: dict[str, str] = {}
    for position, line in enumerate(report.lines):
        pair = _BOARD.match(line.text)
        if pair and is_whole(report, position):
            values.setdefault(pair[1], pair[2])
    if not values.get("NPU ID", "").isdigit() or "Chip Name" not in values:
        return ()
    chip = values.get("Chip ID", "0")
    device = _chip(
        int(values["NPU ID"]), int(chip) if chip.isdigit() else 0, None, values["Chip Name"]
    )
    name = values.get("NPU Name")
    soc = (
        f"{device.arch}{name}" if device.arch and name and re.fullmatch(r"\w{1,4}", name) else None
    )
    return (
        replace(device, arch=soc or device.arch, bdf=normal_bdf(values.get("PCIe Bus Info", ""))),
    )
