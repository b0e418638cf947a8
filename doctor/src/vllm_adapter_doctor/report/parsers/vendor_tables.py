"""Tables, lists and blocks of the tools whose layout is data (`_layouts`): one reader for all.

Nothing is taken from columns' positions: a paste may have lost blanks, the outer bars, or its end.
A table ends where another tool's begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.merge import join_accelerators, merge
from vllm_adapter_doctor.report.parsers._boards import board_table
from vllm_adapter_doctor.report.parsers._common import (
    MIB,
    binary_size,
    is_complete_line,
    normal_bdf,
    number,
    with_end,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._csv import csv_devices
from vllm_adapter_doctor.report.parsers._frame import DeviceRow, device_rows, processes, tables
from vllm_adapter_doctor.report.parsers._keyed import UNCORRECTABLE, keyed_devices
from vllm_adapter_doctor.report.parsers._layouts import (
    Block,
    Rows,
    ToolLayout,
    layouts,
    other_heads,
)
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

_PAIR: Final = re.compile(r"^\s*([A-Z][A-Za-z ]*?)\s*:\s*(.*)$")
_UNREADABLE: Final = "ERR!"
Held = Mapping[int, tuple[DeviceProcess, ...]]


def parse(report: Report) -> HostFacts:
    """What every tool with a layout says of devices, drivers and processes."""
    text = report.text
    found = [one for one in layouts() if one.anchor and one.anchor.search(text)]
    if not found:
        return HostFacts()
    report = without_blank_lines(report)
    return merge(_read(report, layout) for layout in found)


def _read(report: Report, layout: ToolLayout) -> HostFacts:
    devices: tuple[Accelerator, ...] = ()
    if layout.keyed:
        devices = keyed_devices(report, layout, layout.keyed)
    if layout.csv:
        devices = csv_devices(report, layout.vendor, layout.source, layout.csv)
    for pattern in layout.lists if layout.whole_text else ():
        devices = join_accelerators(devices, _listed(report, layout, pattern))
    drivers: list[Driver] = []
    rows = layout.rows
    if rows and rows.boards:
        devices = join_accelerators(devices, board_table(report, layout, rows, rows.boards))
    for start, stop in _table_spans(report, layout):
        drivers += _versions(report, layout, start, stop)
        for block in layout.blocks:
            if block.inside:
                blocks = list(_blocks(report, layout, block, start + 1, stop))
                devices = join_accelerators(devices, [device for device, _ in blocks])
                drivers += [driver for _, driver in blocks if driver]
        if rows and not rows.boards:
            table = list(_table(report, layout, rows, start, stop))
            devices = join_accelerators(devices, [device for device, _ in table])
            drivers += [driver for _, driver in table if driver]
    for block in layout.blocks:
        if not block.inside:
            blocks = list(_blocks(report, layout, block, 0, len(report.lines)))
            devices = join_accelerators(devices, [device for device, _ in blocks])
    for pattern in () if layout.whole_text else layout.lists:
        devices = join_accelerators(devices, _listed(report, layout, pattern))
    arch = report.first(layout.arch) if layout.arch else None
    if arch:
        devices = tuple(replace(device, arch=arch[1]) for device in devices)
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _table_spans(report: Report, layout: ToolLayout) -> list[tuple[int, int]]:
    """(start, stop) of each of the tool's tables."""
    if layout.whole_text:
        return [(0, len(report.lines))]
    every = tables(report, (layout.head, *other_heads(layout.vendor)))
    return [(start, stop) for which, start, stop in every if which == 0]


def _versions(report: Report, layout: ToolLayout, start: int, stop: int) -> Iterator[Driver]:
    most = max((one.lines for one in layout.versions), default=0)
    end = stop if layout.whole_text else min(start + most, stop)
    for position in range(start, end):
        for one in layout.versions:
            if layout.whole_text or position < start + one.lines:
                found = one.pattern.search(with_end(report, position))
                if found:
                    yield Driver(one.component, found[1], layout.source)


def _table(
    report: Report, layout: ToolLayout, rows: Rows, start: int, stop: int
) -> Iterator[tuple[Accelerator, Driver | None]]:
    """The devices of one table, each with the driver that its row names."""
    held = _held(report, layout, rows, start, stop)
    if rows.first is None:
        for row in device_rows(report, start, stop):
            yield _framed(layout, rows, row, held.get(row.index, ())), None
        return
    texts = [line.text for line in report.lines[start:stop]]
    for position, text in enumerate(texts):
        first = rows.first.search(text)
        if not first:
            continue
        below = texts[position + 1] if rows.second and texts[position + 1 :] else ""
        second = rows.second.search(below) if rows.second else None
        said = first.groupdict() | (second.groupdict() if second else {})
        if not said.get("index"):
            continue
        device = _device(layout, {key: value for key, value in said.items() if value})
        version = said.get("driver")
        driver = Driver(rows.driver, version, layout.source) if rows.driver and version else None
        yield replace(device, processes=held.get(device.index, ())), driver


def _held(report: Report, layout: ToolLayout, rows: Rows, start: int, stop: int) -> Held:
    """The processes of each device."""
    if rows.process is None:
        return processes(report, start, stop)
    if layout.whole_text:  # a row of processes is distinguished from others by its place alone
        start = next((at for at, _ in report.find(layout.head)), 0)
    found: dict[int, tuple[DeviceProcess, ...]] = {}
    for line in report.lines[start:stop]:
        row = rows.process.search(line.text)
        if row:
            said = row.groupdict()
            memory = _bytes(said.get("mib") or said.get("size"))
            process = DeviceProcess(int(row["pid"]), row["name"], memory)
            known = found.get(int(row["index"]), ())
            found[int(row["index"])] = tuple(dict.fromkeys((*known, process)))
    return found


def _framed(
    layout: ToolLayout, rows: Rows, row: DeviceRow, held: tuple[DeviceProcess, ...]
) -> Accelerator:
    """A device of NVIDIA's frame, which other makers' tools draw too."""
    memory, health = row.memory, row.health()
    below = row.below[0] if row.below else ""
    status = rows.status.search(below) if rows.status else None
    if status:
        health = replace(health, status=status[1])
    if rows.load:
        load = rows.load.search(row.right)
        health = replace(health, utilization_percent=float(load[1]) if load else None)
    for counter in rows.errors if row.closed else ():
        error = counter.pattern.search(row.right)
        if error:
            said = counter.text.format(*error.groups())
            health = replace(health, errors=(*health.errors, said))
    return Accelerator(
        maker(row.name, layout.vendor),
        row.index,
        layout.source,
        name=None if _UNREADABLE in row.name else row.name or None,
        bdf=row.bdf,
        memory_total_bytes=memory[1] if memory else None,
        memory_used_bytes=memory[0] if memory else None,
        health=health,
        processes=held,
    )


def _listed(report: Report, layout: ToolLayout, pattern: re.Pattern[str]) -> list[Accelerator]:
    """Lines of one device each."""
    return [
        _device(layout, {key: value for key, value in found.groupdict().items() if value})
        for _, found in report.find(pattern)
    ]


def _blocks(
    report: Report, layout: ToolLayout, block: Block, start: int, stop: int
) -> Iterator[tuple[Accelerator, Driver | None]]:
    """Each block's device, with the driver that it names."""
    values: dict[str, str] | None = None
    section = ""
    for position in range(start, stop):
        text = report.lines[position].text
        head, pair = block.head.match(text), _PAIR.match(text)
        if head:
            if values is not None:
                yield _block(layout, block, values)
            section, values = "", {key: text for key, text in head.groupdict().items() if text}
        elif pair and values is not None and is_complete_line(report, position):
            key = pair[1].lower()
            if not pair[2]:
                section = key
            for name in (f"{section}/{key}", key) if pair[2] else ():
                reading = block.keys.get(name)
                if reading:
                    values.setdefault(reading, pair[2])
                if block.driver and name == block.driver.key:
                    values.setdefault("driver", pair[2])
    if values is not None:
        yield _block(layout, block, values)


def _block(
    layout: ToolLayout, block: Block, values: Mapping[str, str]
) -> tuple[Accelerator, Driver | None]:
    parts = [values.get(f"bdf {part}") for part in range(4)]
    if all(parts):
        values = {**values, "bdf": "{}:{}:{}.{}".format(*parts)}
    driver = None
    if block.driver:
        found = block.driver.pattern.fullmatch(values.get("driver", ""))
        driver = Driver(block.driver.component, found[1], layout.source) if found else None
    return _device(layout, values), driver


def _device(layout: ToolLayout, said: Mapping[str, str]) -> Accelerator:
    """The device of readings by name. Memory that is used counts only beside the whole."""
    total, used = (_bytes(said.get(key)) for key in ("total", "used"))
    if total is None:
        total = binary_size(said.get("size"))
    name = said.get("name", "").strip()
    errors = said.get("uncorrectable", "").lstrip("0")
    return Accelerator(
        layout.vendor,
        int(said["index"]),
        layout.source,
        name=name or None,
        bdf=normal_bdf(said.get("bdf", "")),
        uuid=said.get("uuid"),
        partition=said.get("partition"),
        memory_total_bytes=total,
        memory_used_bytes=used if total is not None else None,
        health=Health(
            status=said.get("status"),
            temperature_c=number(said.get("temperature")),
            power_w=number(said.get("power")),
            power_cap_w=number(said.get("cap")),
            utilization_percent=number(said.get("load")),
            errors=(UNCORRECTABLE.format(errors),) if errors else (),
        ),
    )


def _bytes(text: str | None) -> int | None:
    """MiB of a number alone, else by its unit."""
    return int(text) * MIB if text and text.isdigit() else binary_size(text)
