"""Comma-separated answers of `--query-gpu=... --format=csv` and tools that do alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Health
from vllm_adapter_doctor.report.parsers._common import (
    binary_size,
    is_complete_line,
    normal_bdf,
    number,
)
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.parsers._silicon import arch_of
from vllm_adapter_doctor.report.text import Report

_MEMORY: Final = ("memory.total", "memory.used")
_INDEX: Final = "index"
_ASKED: Final = re.compile(r"nvidia-smi\b.*--query-gpu[= ](?P<names>[\w.,]+)(?P<rest>.*)")
_ONE: Final = re.compile(r"(?:^|\s)(?:-i|--id)\b")
_PLAIN: Final = re.compile(r"\d+(?:\.\d+)+")


def csv_devices(
    report: Report, vendor: str, source: str, needs: Sequence[str] = ()
) -> tuple[Accelerator, ...]:
    """The devices of every such table; a header must name `index` and one of `needs`.

    A unit stands in the header ("memory.total [MiB]") or in the cell. The text's last line is
    believed but for its last cell, which may have been cut.
    """
    return tuple(
        _device(row, units, vendor, source) for row, units in _rows(report, needs) if row[_INDEX]
    )


def csv_drivers(report: Report) -> tuple[str, ...]:
    """The versions of the NVIDIA driver in such tables."""
    versions = (row.get("driver_version", "") for row, _ in _rows(report, ("driver_version",)))
    return tuple(dict.fromkeys(one for one in versions if _PLAIN.fullmatch(one)))


def _rows(report: Report, needs: Sequence[str]) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """(cells by name, units by name) of each row; the command names them where a header does not.

    Rows without `index` are all devices in their order, unless the command asked for one.
    """
    one = False
    for start, line in enumerate(report.lines):
        asked = _ASKED.search(line.text)
        if asked:
            one = _ONE.search(line.text) is not None
        if "," not in line.text:
            continue
        if asked and "noheader" in asked["rest"]:
            names = asked["names"].lower().split(",")
            units = dict.fromkeys(_MEMORY, "MiB" if "nounits" in asked["rest"] else "")
        elif asked:
            continue
        else:
            names, units = _header(line.text)
            if _INDEX not in names and not ("name" in names and _unnumbered(names, units)):
                continue
        if (needs and not set(needs) & set(names)) or (one and _INDEX not in names):
            continue
        for order, place in enumerate(range(start + 1, len(report.lines))):
            cells = [cell.strip() for cell in report.lines[place].text.split(",")]
            last = not is_complete_line(report, place)
            if len(cells) != len(names) and not last:
                break
            row = dict(zip(names, cells[:-1] if last else cells, strict=False))
            if _INDEX not in names:
                row[_INDEX] = str(order)
            if not row.get(_INDEX, "").isdigit():
                break
            yield row, units


def _unnumbered(names: Sequence[str], units: dict[str, str]) -> bool:
    """Whether a header without numbers is surely the tool's: one of its units, or of its names."""
    return units.get(_MEMORY[0]) == "MiB" or "pci.bus_id" in names or "driver_version" in names


def _header(text: str) -> tuple[list[str], dict[str, str]]:
    names, units = [], {}
    for cell in text.split(","):
        name, _, unit = cell.strip().partition(" [")
        names.append(name.lower())
        units[name.lower()] = unit.rstrip("]")
    return names, units


def _device(row: dict[str, str], units: dict[str, str], vendor: str, source: str) -> Accelerator:
    def size(key: str) -> int | None:
        cell = row.get(key, "")
        return binary_size(cell if cell.endswith("B") else f"{cell} {units.get(key) or 'x'}")

    def reading(*keys: str) -> float | None:
        values = (number(row.get(key)) for key in keys)
        return next((value for value in values if value is not None), None)

    name = row.get("name") or row.get("gpu_name")
    made_by = maker(name, vendor)
    return Accelerator(
        made_by,
        int(row[_INDEX]),
        source,
        name=name,
        bdf=normal_bdf(row.get("pci.bus_id") or row.get("gpu_bus_id") or row.get("bus_id") or ""),
        uuid=row.get("uuid") or row.get("gpu_uuid"),
        arch=arch_of(made_by, row.get("compute_cap", "")),
        memory_total_bytes=size(_MEMORY[0]),
        memory_used_bytes=size(_MEMORY[1]),
        health=Health(
            temperature_c=reading("temperature.gpu", "temperature.aip"),
            power_w=reading("power.draw"),
            power_cap_w=reading("power.limit", "power.max"),
            utilization_percent=reading("utilization.gpu", "utilization.aip"),
            clock_mhz=reading("clocks.sm", "clocks.current.sm", "clocks.current.soc"),
            clock_max_mhz=reading("clocks.max.sm", "clocks.max.soc"),
        ),
    )
