"""Intel's `xpu-smi discovery`: its table, `-j` and `--dump`.

The overview of version 2 is read by `vendor_tables`, and so is the tool of this name that
Kunlunxin has, with NVIDIA's table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Health
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._common import (
    binary_size,
    is_complete_line,
    normal_bdf,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._json import objects
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

_HEAD: Final = re.compile(r"\|\s*Device ID\s*\|\s*Device Information")
_ROW: Final = re.compile(
    r"^\s*\|?\s*(?:(?P<id>\d+)\s*)?\|\s*(?P<key>[A-Z][^:|]*):\s*(?P<value>[^|]*)(?P<bar>\|?)\s*$"
)
_DUMP_HEAD: Final = re.compile(r"^\s*Device ID,", re.M)
_VENDOR: Final = "xpu"
_MAKER: Final = "Intel"
_SOURCE: Final = "xpu-smi"
_KEYS: Final = {
    "device name": "name",
    "device_name": "name",
    "vendor name": "vendor",
    "vendor_name": "vendor",
    "uuid": "uuid",
    "soc uuid": "uuid",
    "pci bdf address": "bdf",
    "pci_bdf_address": "bdf",
    "memory physical size": "memory",
    "memory_physical_size_byte": "bytes",
    "driver version": "driver",
    "device function type": "function",
    "device type": "type",
}


def parse(report: Report) -> HostFacts:
    """Devices by the tool's numbers, and their drivers."""
    report = without_blank_lines(report)
    devices: tuple[Accelerator, ...] = ()
    for index, values in (*_discovered(report), *_dumped(report), *_json(report)):
        device = _device(index, values)
        devices = join_accelerators(devices, (device,) if device else ())
    return HostFacts(accelerators=devices)


def _discovered(report: Report) -> Iterator[tuple[int, dict[str, str]]]:
    """Boxes of the discovery table: a number stands in the first of a device's rows."""
    for start, _ in report.find(_HEAD):
        index: int | None = None
        values: dict[str, str] = {}
        for position in range(start + 1, len(report.lines)):
            text = report.lines[position].text
            if _HEAD.search(text):
                break
            row = _ROW.match(text)
            if not row or not (row["bar"] or is_complete_line(report, position)):
                if text.strip() and not re.match(r"\s*[|+]", text):
                    break
                continue
            if row["id"]:
                if index is not None:
                    yield index, values
                index, values = int(row["id"]), {}
            key = _KEYS.get(row["key"].strip().lower())
            value = row["value"].strip()
            if key and value:
                values.setdefault(key, value)
        if index is not None:
            yield index, values


def _dumped(report: Report) -> Iterator[tuple[int, dict[str, str]]]:
    """`discovery --dump 1,2,11,16`: a header of names in words, one line a device."""
    for start, _ in report.find(_DUMP_HEAD):
        names = [name.strip().lower() for name in report.lines[start].text.split(",")]
        for place in range(start + 1, len(report.lines)):
            cells = [cell.strip(' "') for cell in report.lines[place].text.split(",")]
            if len(cells) != len(names) or not cells[0].isdigit():
                break
            if not is_complete_line(report, place):
                cells[-1] = ""  # it may have been cut
            keys = [_KEYS.get(name, name) for name in names]
            yield int(cells[0]), dict(zip(keys, cells, strict=True))


def _json(report: Report) -> Iterator[tuple[int, dict[str, str]]]:
    for found in objects(report, '"device_list"'):
        for entry in found.get("device_list") or ():
            if isinstance(entry, dict) and isinstance(entry.get("device_id"), int):
                pairs = ((_KEYS.get(key), str(value)) for key, value in entry.items())
                yield entry["device_id"], {key: value for key, value in pairs if key}


def _device(index: int, values: dict[str, str]) -> Accelerator | None:
    if maker(values.get("vendor", _MAKER), "") != _VENDOR:
        return None
    plain = values.get("bytes", "")
    memory = int(plain) if plain.isdigit() else binary_size(values.get("memory"))
    return Accelerator(
        _VENDOR,
        index,
        _SOURCE,
        name=values.get("name"),
        bdf=normal_bdf(values.get("bdf", "")),
        uuid=values.get("uuid"),
        memory_total_bytes=memory,
        driver=values.get("driver"),
        health=Health(),
    )
