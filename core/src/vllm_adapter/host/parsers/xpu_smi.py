"""Intel's `xpu-smi`: the table, `-j` and `--dump` of `discovery`, and the overview of version 2.

Kunlunxin has a tool of this name too, with NVIDIA's table: see `nvidia_smi`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.host.device_facts import Accelerator, Driver, Health
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.host.merge import join_accelerators
from vllm_adapter.host.parsers._common import binary_size, dense, is_whole, normal_bdf, with_end
from vllm_adapter.host.parsers._frame import device_rows, processes, tables
from vllm_adapter.host.parsers._json import objects
from vllm_adapter.host.text import Report

_OVERVIEW: Final = re.compile(r"Intel XPU-SMI v(\S+)")
_OTHERS: Final = re.compile(r"\b(?:NVIDIA-SMI|AMD-SMI|MX-SMI)\s+\d|\bHL-SMI Version:")
_LEVEL_ZERO: Final = re.compile(r"Level Zero(?: Version)?:\s*(\d+(?:\.\d+)+)(?=\s|\|)")
_HEAD: Final = re.compile(r"\|\s*Device ID\s*\|\s*Device Information")
_ROW: Final = re.compile(
    r"^\s*\|?\s*(?:(?P<id>\d+)\s*)?\|\s*(?P<key>[A-Z][^:|]*):\s*(?P<value>[^|]*)(?P<bar>\|?)\s*$"
)
_DUMP_HEAD: Final = re.compile(r"^\s*Device ID,", re.M)
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
    """Devices by the tool's numbers, and what it says of driver and Level Zero."""
    report = dense(report)
    devices: tuple[Accelerator, ...] = ()
    for index, values in (*_discovered(report), *_dumped(report), *_json(report)):
        device = _device(index, values)
        devices = join_accelerators(devices, (device,) if device else ())
    drivers = []
    for which, start, stop in tables(report, (_OVERVIEW, _OTHERS)):
        if which:
            continue
        found = _LEVEL_ZERO.search(with_end(report, start))
        if found:
            drivers.append(Driver("level-zero", found[1], _SOURCE))
        devices = join_accelerators(devices, _overview(report, start, stop))
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _overview(report: Report, start: int, stop: int) -> list[Accelerator]:
    held = processes(report, start, stop)
    found = []
    for row in device_rows(report, start, stop):
        memory = row.memory
        found.append(
            Accelerator(
                "xpu",
                row.index,
                _SOURCE,
                name=row.name or None,
                bdf=row.bdf,
                memory_total_bytes=memory[1] if memory else None,
                memory_used_bytes=memory[0] if memory else None,
                health=row.health(),
                processes=held.get(row.index, ()),
            )
        )
    return found


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
            if not row or not (row["bar"] or is_whole(report, position)):
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
            if not is_whole(report, place):
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
    vendor = values.get("vendor", "Intel")
    if "intel" not in vendor.lower():
        return None
    plain = values.get("bytes", "")
    memory = int(plain) if plain.isdigit() else binary_size(values.get("memory"))
    return Accelerator(
        "xpu",
        index,
        _SOURCE,
        name=values.get("name"),
        bdf=normal_bdf(values.get("bdf", "")),
        uuid=values.get("uuid"),
        memory_total_bytes=memory,
        driver=values.get("driver"),
        health=Health(),
    )
