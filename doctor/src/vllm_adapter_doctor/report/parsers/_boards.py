"""Tables of boards that carry one or more chips, as `npu-smi` draws them.

A chip is two rows: board, name, health; then chip, bus address, memory. The numbers are boards';
programs count chips, in the order of board and chip. Megabytes are 2**20 bytes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, DeviceProcess, Health
from vllm_adapter_doctor.report.parsers._common import MIB, is_complete_line, normal_bdf, number
from vllm_adapter_doctor.report.parsers._layouts import BoardColumns, Pattern, Rows, ToolLayout
from vllm_adapter_doctor.report.text import Report

_OF: Final = re.compile(r"(\d+)\s*/\s*(\d+)(?=\s|\|)")


def board_table(
    report: Report, layout: ToolLayout, rows: Rows, boards: BoardColumns
) -> tuple[Accelerator, ...]:
    """Every chip once; `logical` is its place, where the table's beginning is there."""
    assert rows.first is not None and rows.second is not None
    found: dict[tuple[int, int], Accelerator] = {}
    in_processes = False
    named: re.Match[str] | None = None
    pairs, from_start = 1 + boards.columns.groups, False
    for position, line in enumerate(report.lines):
        if rows.process_head and rows.process_head.search(line.text):
            in_processes, named = True, None
            continue
        if layout.head.search(line.text):
            in_processes = False
        if in_processes:
            _add_process(found, rows.process, line.text)
            continue
        columns = boards.columns.search(line.text)
        if columns:
            from_start = from_start or not found
            pairs = 1 + sum(1 for group in columns.groups() if group)
        head = rows.first.search(line.text)
        if head:
            _half(found, layout, rows, boards, named)
            named = head
            continue
        placed = rows.second.search(line.text) if named else None
        if named and placed:
            whole = is_complete_line(report, position)
            device = _device(layout, rows, boards, named, placed, whole, pairs)
            found.setdefault((device.index, device.die or 0), device)
            named = None
    _half(found, layout, rows, boards, named)
    chips = [found[key] for key in sorted(found)]
    if not from_start:
        return tuple(chips)  # the table's beginning is lost, and with it who is first
    return tuple(replace(one, logical=place) for place, one in enumerate(chips))


def arch_of_name(name: str | None, boards: BoardColumns) -> str | None:
    """The device code in a chip's name; None for a name of the whole family."""
    found = boards.arch.fullmatch((name or "").strip())
    return found[1].lower() if found else None


def _device(
    layout: ToolLayout,
    rows: Rows,
    boards: BoardColumns,
    named: re.Match[str],
    placed: re.Match[str],
    whole: bool,
    pairs: int,
) -> Accelerator:
    memory = _OF.findall(placed["memory"] + ("|" if whole else ""))
    # "0 / 0" is a memory that the chip has not
    last = memory[-1] if len(memory) >= pairs else ("0", "0")
    used, total = int(last[0]), int(last[1])
    return Accelerator(
        layout.vendor,
        int(named["index"]),
        rows.source or layout.source,
        name=named["name"],
        card=int(named["index"]),
        die=int(placed["die"]) if placed["die"] else None,
        bdf=normal_bdf(placed["bdf"]),
        node_number=_number_of_node(placed),
        arch=arch_of_name(named["name"], boards),
        memory_total_bytes=total * MIB if total else None,
        memory_used_bytes=used * MIB if 0 < total >= used else None,
        health=Health(
            status=named["status"],
            temperature_c=number(named["temperature"]),
            power_w=number(named["power"]),
            utilization_percent=number(placed["load"]),
        ),
    )


def _half(
    found: dict[tuple[int, int], Accelerator],
    layout: ToolLayout,
    rows: Rows,
    boards: BoardColumns,
    named: re.Match[str] | None,
) -> None:
    """A chip of whose two rows the second is cut: it is there, and the rest is unknown."""
    if named is not None and (int(named["index"]), 0) not in found:
        name = named["name"]
        found[int(named["index"]), 0] = Accelerator(
            layout.vendor,
            int(named["index"]),
            rows.source or layout.source,
            name=name,
            card=int(named["index"]),
            arch=arch_of_name(name, boards),
            health=Health(status=named["status"]),
        )


def _number_of_node(placed: re.Match[str]) -> int | None:
    number_ = placed.groupdict().get("node")
    return int(number_) if number_ else None


def _add_process(
    found: dict[tuple[int, int], Accelerator], pattern: Pattern | None, text: str
) -> None:
    row = pattern.search(text) if pattern else None
    key = (int(row["index"]), int(row["die"] or 0)) if row else None
    if row and key in found:
        process = DeviceProcess(int(row["pid"]), row["name"] or None, int(row["mib"]) * MIB)
        device = found[key]
        if process not in device.processes:
            found[key] = replace(device, processes=(*device.processes, process))
