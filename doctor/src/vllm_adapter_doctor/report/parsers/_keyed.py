"""What tools say of a device by keys and values, whose names are data: lines, JSON, a CSV dump.

Each form gives (index, values by key in small letters); one function makes devices of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Health
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._common import (
    MIB,
    binary_size,
    is_complete_line,
    normal_bdf,
    number,
)
from vllm_adapter_doctor.report.parsers._json import objects
from vllm_adapter_doctor.report.parsers._layouts import Keyed, KeyedJson, KeyedLines, ToolLayout
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

UNCORRECTABLE: Final = "{} uncorrectable memory errors"
_UNTOLD: Final = re.compile(r"N/A|0x.*")
_PARTITION: Final = re.compile(r"[SDTQC]PX/NPS\d")
_ARCH: Final = re.compile(r"gfx[0-9a-f]+")

Values = dict[str, str]


def keyed_devices(report: Report, layout: ToolLayout, keyed: Keyed) -> tuple[Accelerator, ...]:
    """The devices that any of a tool's forms tells of, in the order of the forms."""
    found = [one for form in keyed.lines for one in _lines(report, form)]
    found += _dumped(report, keyed.dump) if keyed.dump else ()
    found += _json(report, keyed.json) if keyed.json else ()
    devices: tuple[Accelerator, ...] = ()
    for index, values in found:
        one = _device(index, values, layout, keyed)
        devices = join_accelerators(devices, (one,) if one else ())
    return devices


def _lines(report: Report, form: KeyedLines) -> list[tuple[int, Values]]:
    """Each device's pairs: below the line that names it, or in lines that each name theirs."""
    found: list[tuple[int, Values]] = []
    known: dict[int, Values] = {}
    current: Values | None = None
    inside = form.head is None
    for position, line in enumerate(report.lines):
        head = form.head.search(line.text) if form.head else None
        pair = form.pair.match(line.text) if inside and not head else None
        found_here = head or pair
        said = found_here.groupdict() if found_here else {}
        if head:
            inside, known, current = True, {}, None
        elif form.head and not pair and line.text.strip():
            inside = inside and bool(form.between and form.between.match(line.text))
        if said.get("index"):
            index = int(said["index"])
            if index not in known:
                known[index] = {}
                found.append((index, known[index]))
            current = known[index]
        whole = said.get("closed") or is_complete_line(report, position)
        if current is not None and whole and (said.get("value") or "").strip():
            current.setdefault(said["key"].strip().lower(), said["value"].strip())
    return [(index, values) for index, values in found if values]


def _dumped(report: Report, head: re.Pattern[str]) -> Iterator[tuple[int, Values]]:
    """A line of names in words, the first of which is the number's, and one line a device."""
    for start, _ in report.find(head):
        names = [name.strip().lower() for name in report.lines[start].text.split(",")]
        for place in range(start + 1, len(report.lines)):
            cells = [cell.strip(' "') for cell in report.lines[place].text.split(",")]
            if len(cells) != len(names) or not cells[0].isdigit():
                break
            if not is_complete_line(report, place):
                cells[-1] = ""  # it may have been cut
            yield int(cells[0]), dict(zip(names, cells, strict=True))


def _json(report: Report, form: KeyedJson) -> Iterator[tuple[int, Values]]:
    for document in objects(report, form.mark):
        for number_, entry in _entries(document, form):
            if isinstance(number_, int) and isinstance(entry, dict):
                values: Values = {}
                _flatten(entry, values)
                yield number_, values


def _entries(document: Any, form: KeyedJson) -> Iterator[tuple[Any, Any]]:
    """(number, object) of each device: in a list, or by names that hold the number."""
    if form.names is not None:
        for key, entry in document.items() if isinstance(document, dict) else ():
            if named := form.names.fullmatch(key):
                yield int(named[1]), entry
        return
    listed = document.get(form.entries) if isinstance(document, dict) else document
    for entry in listed if isinstance(listed, list) else ():
        yield entry.get(form.index) if isinstance(entry, dict) else None, entry


def _flatten(value: Mapping[str, Any], into: Values) -> None:
    """The leaves by their own keys; {"value": 1, "unit": "MB"} becomes "1 MB"."""
    for key, inner in value.items():
        if isinstance(inner, dict) and "value" in inner:
            inner = f"{inner['value']} {inner.get('unit', '')}".strip()
        if isinstance(inner, dict):
            _flatten(inner, into)
        elif not isinstance(inner, list):
            into.setdefault(str(key).lower(), str(inner))


def _device(index: int, values: Values, layout: ToolLayout, keyed: Keyed) -> Accelerator | None:
    """The device of its values; None where the tool lists another vendor's, which it may."""

    def text(reading: str) -> str | None:
        told = (values.get(key) for key in keyed.readings.get(reading, ()))
        return next((one for one in told if one and not _UNTOLD.fullmatch(one)), None)

    def figure(reading: str) -> float | None:
        told = (number(values.get(key)) for key in keyed.readings.get(reading, ()))
        return next((one for one in told if one is not None), None)

    def size(reading: str) -> int | None:
        for unit, factor in (("bytes", 1), ("MiB", MIB)):
            plain = text(f"{reading} {unit}") or ""
            if plain.isdigit():
                return int(plain) * factor
        told = (binary_size(values.get(key)) for key in keyed.readings.get(reading, ()))
        return next((one for one in told if one), None)

    name = text("name")
    made_by = maker(text("maker") or name, layout.vendor) if keyed.others else layout.vendor
    if not keyed.others and maker(text("maker"), layout.vendor) != layout.vendor:
        return None
    compute = text("compute mode") or ""
    mode = _PARTITION.fullmatch(f"{compute}/{text('memory mode')}")
    die = figure("die")
    if compute == "SPX" or not (mode or die):  # without a mode, 0 may be the whole device
        die = None
    arch, uncorrectable = _ARCH.match(text("arch") or ""), figure("uncorrectable")
    return Accelerator(
        made_by,
        index,
        layout.source,
        name=name,
        die=None if die is None else int(die),
        bdf=normal_bdf(text("bdf") or ""),
        uuid=text("uuid"),
        arch=arch[0] if arch else None,
        memory_total_bytes=size("total"),
        memory_used_bytes=size("used"),
        partition=mode[0] if mode else None,
        driver=text("driver"),
        health=Health(
            temperature_c=figure("temperature"),
            power_w=figure("power"),
            power_cap_w=figure("cap"),
            utilization_percent=figure("load"),
            throttle_reasons=tuple(
                word for key, word in keyed.throttled.items() if values.get(key) == "ACTIVE"
            ),
            errors=(UNCORRECTABLE.format(int(uncorrectable)),) if uncorrectable else (),
        ),
    )
