"""`npu-smi info -m` and `info -t board` of every Ascend generation, joined with its table.

The table's layout is data, and read by `_boards`: A3 boards carry two chips, a 310P card has no
HBM column, and A5 prints neither chip nor bus address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Driver
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._boards import arch_of_name, board_table
from vllm_adapter_doctor.report.parsers._common import (
    is_complete_line,
    normal_bdf,
    with_end,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._layouts import BoardColumns, Rows, layout_of
from vllm_adapter_doctor.report.text import Report

SOURCE: Final = "npu-smi info"
_MAP_HEAD: Final = re.compile(r"NPU ID\s+(?:Slot ID\s+)?Chip ID\s+Chip (?:Logic ID|Phy-ID)")
_MAP_ROW: Final = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+|-)\s+(\S.*)$")
_SLOT_ROW: Final = re.compile(r"^\s*(\d+)\s+\d+\s+(\d+)\s+(\d+|-)\s+([A-Za-z]\S*)\s*$")
_BOARD: Final = re.compile(
    r"^\s*(NPU ID|Chip ID|Chip Name|Chip Type|NPU Name|PCIe Bus Info|Software Version"
    r"|Firmware Version)\s*:\s*(\S.*)$"
)


def parse(report: Report) -> HostFacts:
    """Every chip once, in the order of NPU and chip; `logical` counts them, or is as `-m` says."""
    report = without_blank_lines(report)
    layout = layout_of("npu-smi")
    rows, boards = _table()
    devices = join_accelerators(_mapped(report), _board(report))
    drivers: list[Driver] = []
    for position, _ in report.find(layout.head):
        for version in layout.versions:
            found = version.pattern.search(with_end(report, position))
            if found:
                drivers.append(Driver(version.component, found[1], layout.source))
    devices = _joined(devices, board_table(report, layout, rows, boards))
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _table() -> tuple[Rows, BoardColumns]:
    rows = layout_of("npu-smi").rows
    assert rows is not None and rows.boards is not None
    return rows, rows.boards


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
                name = row[4] if is_complete_line(report, position) else None
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
            if row[4].lower() != "mcu" and is_complete_line(report, position):
                yield _chip(int(row[1]), int(row[2]) or None, None, row[4])


def _chip(npu: int, chip: int | None, logical: int | None, name: str | None) -> Accelerator:
    return Accelerator(
        "ascend",
        npu,
        SOURCE,
        name=name,
        logical=logical,
        card=npu,
        die=chip,
        arch=arch_of_name(name, _table()[1]),
    )


def _board(report: Report) -> tuple[Accelerator, ...]:
    """The key and value lines of `npu-smi info -t board -i N [-c M]`."""
    values: dict[str, str] = {}
    for position, line in enumerate(report.lines):
        pair = _BOARD.match(line.text)
        if pair and is_complete_line(report, position):
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
