"""`rocm-smi` of every age, and Hygon's `hy-smi`: concise tables, `GPU[0] : key: value`, JSON.

Hygon's tool is ROCm's under another name: it says DCU or HCU where AMD's says GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Driver, Health
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import derives
from vllm_adapter.hostfacts.vendor_files import once, sections
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._common import (
    MIB,
    is_complete_line,
    normal_bdf,
    number,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._json import objects
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

_VENDOR: Final = "rocm"


@once
def _copies() -> dict[str, str]:
    """The words for a device in copies of the tool: whose copy it is."""
    return {
        word: vendor
        for vendor, tools in sections("tools")
        if derives(vendor, _VENDOR)
        for tool in tools
        for word in tool.get("words", ())
    }


@once
def _head() -> re.Pattern[str]:
    words = "|".join(("GPU", *_copies()))
    return re.compile(
        rf"^\W*(?P<face>Device|{words})\s.*\bTemp\b.*\bPerf\s+PwrCap\s+VRAM%\s+(?:{words})%"
    )


@once
def _pair() -> re.Pattern[str]:
    return re.compile(
        rf"^\s*(?P<face>{'|'.join(('GPU', *_copies()))})\[(?P<index>\d+)\]\s*:\s*"
        r"(?P<key>[A-Za-z][^:]*):\s+(?P<value>\S.*)$"
    )


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
_NAMES: Final = ("card series", "card model", "device name", "market name")


def parse(report: Report) -> HostFacts:
    """Devices by the tool's own numbers. VRAM in per cent is no size, and is left out."""
    report = without_blank_lines(report)
    pairs = [*_pairs(report), *_json(report)]
    devices = join_accelerators((), [_described(*one) for one in pairs])
    for device in _concise(report):
        devices = join_accelerators(devices, (device,))
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


def _concise(report: Report) -> Iterator[Accelerator]:
    for start, head in report.find(_head()):
        vendor = _copies().get(head["face"], _VENDOR)
        first: Accelerator | None = None
        for position in range(start + 1, len(report.lines)):
            text = report.lines[position].text
            if re.match(r"\s*=+\s*End of|\s*=+ [A-Z]", text) or _head().search(text):
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


def _pairs(report: Report) -> Iterator[tuple[str, int, dict[str, str]]]:
    """What `GPU[0] : key: value` lines say of each device, in order of first mention."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    for position, pair in report.find(_pair()):
        if is_complete_line(report, position):
            values = found.setdefault((pair["face"], int(pair["index"])), {})
            values.setdefault(pair["key"].strip().lower(), pair["value"])
    for (face, index), values in found.items():
        yield face, index, values


def _json(report: Report) -> Iterator[tuple[str, int, dict[str, str]]]:
    for document in objects(report, '"card'):
        for card, values in document.items() if isinstance(document, dict) else ():
            if re.fullmatch(r"card\d+", card) and isinstance(values, dict):
                words = {str(key).lower(): str(value) for key, value in values.items()}
                yield "GPU", int(card[4:]), words


def _system_driver(document: object) -> str | None:
    """The version in {"system": {"Driver version": "6.8.5"}}."""
    system = document.get("system") if isinstance(document, dict) else None
    version = system.get("Driver version") if isinstance(system, dict) else None
    return version if isinstance(version, str) and _NUMBERS.fullmatch(version) else None


def _described(face: str, index: int, values: dict[str, str]) -> Accelerator:
    vendor = _copies().get(face, _VENDOR)
    names = (values.get(key) for key in _NAMES)
    name = next((one for one in names if one and not one.startswith("0x") and one != "N/A"), None)
    memory = ("compute partition", "memory partition")
    compute, nodes = (values.get(key, "N/A") for key in memory)
    split = re.fullmatch(r"[SDTQC]PX", compute) and re.fullmatch(r"NPS\d", nodes)
    arch = re.match(r"gfx[0-9a-f]+", values.get("gfx version", ""))
    return Accelerator(
        vendor if face in _copies() else maker(values.get("card vendor", name), vendor),
        index,
        _SOURCE,
        name=name,
        bdf=normal_bdf(values.get("pci bus", "")),
        arch=arch[0] if arch else None,
        memory_total_bytes=_bytes(values, "vram total memory"),
        memory_used_bytes=_bytes(values, "vram total used memory"),
        partition=f"{compute}/{nodes}" if split else None,
        health=Health(
            temperature_c=_first(
                values,
                "temperature (sensor junction) (c)",
                "temperature (sensor edge) (c)",
            ),
            power_w=_first(
                values,
                "current socket graphics package power (w)",
                "average graphics package power (w)",
            ),
            power_cap_w=_first(values, "max graphics package power (w)"),
            utilization_percent=_first(values, "gpu use (%)", "hcu use (%)", "dcu use (%)"),
        ),
    )


def _bytes(values: dict[str, str], key: str) -> int | None:
    """AMD's tool prints bytes, Hygon's MiB."""
    for unit, factor in (("b", 1), ("mib", MIB)):
        text = values.get(f"{key} ({unit})", "")
        if text.isdigit():
            return int(text) * factor
    return None


def _first(values: dict[str, str], *keys: str) -> float | None:
    found = (number(values.get(key)) for key in keys)
    return next((value for value in found if value is not None), None)
