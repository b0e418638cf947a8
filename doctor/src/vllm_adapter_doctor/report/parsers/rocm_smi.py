"""`rocm-smi` of every age, and Hygon's `hy-smi`: their concise tables, beside what is data.

A row's readings belong to the next row's name and the first part's card, so that no layout of
`vendor_tables` fits. Hygon's tool is ROCm's under another name: it says DCU or HCU where AMD's
says GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Driver, Health
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import derives
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._common import is_complete_line, without_blank_lines
from vllm_adapter_doctor.report.parsers._json import objects
from vllm_adapter_doctor.report.parsers._keyed import keyed_devices
from vllm_adapter_doctor.report.parsers._layouts import layouts
from vllm_adapter_doctor.report.text import Report

_VENDOR: Final = "rocm"
_ROW: Final = re.compile(
    r"^\s*(?P<index>\d{1,3})\s+(?P<left>\S.*?)\s(?P<perf>n/a|[a-z_]+)\s+(?P<right>.*)$"
)
_TEMPERATURE: Final = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s?[°_]?[cC]\b")
_WATTS: Final = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)W\b")
_TAIL: Final = re.compile(
    r"^(?:(?P<cap>\d+(?:\.\d+)?)W|N/A|Unsupported)\s+(?:\d+(?:\.\d+)?%|N/A|Unsupported)\s+"
    r"(?:(?P<load>\d+(?:\.\d+)?)%|N/A|Unsupported)"
)
_PARTITION: Final = re.compile(r"\b(NPS\d),\s*([SDTQC]PX)\b(?:,\s*(\d+)\b)?")
_PART: Final = re.compile(r"\bN/A,\s*N/A,\s*([1-9]\d?)\b")
"""A partition that is not its card's first: the card's readings are in the first one's row."""
_DRIVER: Final = re.compile(r"^\s*(?:\S+\s+)?[Dd]river version\s*:\s*(\d+(?:\.\d+)+)\s*$")
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)+")
_SOURCE: Final = "rocm-smi"


def parse(report: Report) -> HostFacts:
    """Devices by the tool's own numbers. VRAM in per cent is no size, and is left out."""
    report = without_blank_lines(report)
    ours = [one for one in layouts() if one.anchor is None and one.keyed]
    devices: tuple[Accelerator, ...] = ()
    for layout in ours:
        assert layout.keyed is not None
        named = replace(layout, source=_SOURCE)
        devices = join_accelerators(devices, keyed_devices(report, named, layout.keyed))
    for layout in ours:
        for device in _concise(report, layout.vendor, layout.head, [one.head for one in ours]):
            devices = join_accelerators(devices, (device,))
    if not devices:
        devices = tuple(_headless(report))
    drivers = [
        Driver("amdgpu", found[1], _SOURCE)
        for position, found in report.find(_DRIVER)
        if is_complete_line(report, position)
    ]
    drivers += [
        Driver("amdgpu", version, _SOURCE)
        for document in objects(report, '"card')
        if (version := _system_driver(document))
    ]
    if any(derives(device.vendor, _VENDOR) for device in devices):
        drivers = []
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _headless(report: Report) -> Iterator[Accelerator]:
    """Rows of partitions whose table's head was not pasted."""
    for line in report.lines:
        row, part = _ROW.match(line.text), _PARTITION.search(line.text)
        if row and part and _WATTS.search(line.text):
            number = int(part[3]) if part[3] else None
            yield Accelerator(
                _VENDOR, int(row["index"]), _SOURCE, die=number, partition=f"{part[2]} {part[1]}"
            )


def _concise(
    report: Report, vendor: str, head: re.Pattern[str], heads: Sequence[re.Pattern[str]]
) -> Iterator[Accelerator]:
    for start, _ in report.find(head):
        first: Accelerator | None = None
        for position in range(start + 1, len(report.lines)):
            text = report.lines[position].text
            if re.match(r"\s*=+\s*End of|\s*=+ [A-Z]", text) or _begins(text, heads):
                break
            row = _ROW.match(text)
            if row and (_WATTS.search(text) or _TAIL.match(row["right"])):
                below = report.lines[position + 1].text if position + 1 < len(report.lines) else ""
                named = re.match(r"\s{4,}([A-Z][\w .()/-]+?)\s*$", below)
                whole = is_complete_line(report, position + 1)
                device = _row(vendor, row, named[1] if named and whole else None)
                part = _PART.search(row["left"])
                if part and first and first.die is not None:
                    device = replace(device, die=int(part[1]), partition=first.partition)
                elif not part:
                    first = device
                yield device


def _begins(text: str, heads: Sequence[re.Pattern[str]]) -> bool:
    return any(head.search(text) for head in heads)


def _row(vendor: str, row: re.Match[str], name: str | None) -> Accelerator:
    remaining, tail = row["left"], _TAIL.match(row["right"])
    partition = _PARTITION.search(remaining)
    compute = partition[2] if partition else None
    temperature = _TEMPERATURE.search(remaining)
    watts = _WATTS.search(remaining)
    return Accelerator(
        vendor,
        int(row["index"]),
        _SOURCE,
        name=name,
        die=int(partition[3]) if partition and partition[3] and compute != "SPX" else None,
        partition=f"{compute}/{partition[1]}" if partition else None,
        health=Health(
            temperature_c=float(temperature[1]) if temperature else None,
            power_w=float(watts[1]) if watts else None,
            power_cap_w=float(tail["cap"]) if tail and tail["cap"] else None,
            utilization_percent=float(tail["load"]) if tail and tail["load"] else None,
        ),
    )


def _system_driver(document: object) -> str | None:
    """The version in {"system": {"Driver version": "6.8.5"}}."""
    system = document.get("system") if isinstance(document, dict) else None
    version = system.get("Driver version") if isinstance(system, dict) else None
    return version if isinstance(version, str) and _NUMBERS.fullmatch(version) else None
