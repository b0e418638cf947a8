"""`cnmon` of Cambricon, whose older releases print the driver where newer print the bus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.host.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.host.merge import join_accelerators
from vllm_adapter.host.parsers._common import (
    MIB,
    binary_size,
    dense,
    is_whole,
    normal_bdf,
    number,
    with_end,
)
from vllm_adapter.host.parsers._frame import BDF, tables
from vllm_adapter.host.text import Report

_HEADS: Final = (
    re.compile(r"\bCNMON\s+v\d"),
    re.compile(r"\b(?:NVIDIA-SMI|AMD-SMI|MX-SMI)\s+\d|\bHL-SMI Version:|={5}\s*NVSMI LOG"),
)
_DRIVER: Final = re.compile(r"\bDriver v(\d+(?:\.\d+)+)(?=\s|\|)")
_FIRST: Final = re.compile(
    rf"(?:^|\|)\s*(?P<index>\d+)\s+(?:/|\d+)\s+(?P<name>MLU\S+)\s+\S+\s*\|\s*"
    rf"(?:(?P<bdf>{BDF})|O(?:n|ff)\s+v(?P<driver>\d+(?:\.\d+)+))\s*\|\s*(?P<load>\d{{1,3}})\s*%"
)
_SECOND: Final = re.compile(
    r"(?P<temperature>\d+)\s*C\s+(?P<power>\d+)\s*W\s*/\s*(?P<cap>\d+)\s*W\b\s*\|?"
    r"(?:\s*(?P<used>\d+)\s*MiB\s*/\s*(?P<total>\d+)\s*MiB\b)?"
)
_PROCESS: Final = re.compile(
    r"(?:^|\|)\s*(?P<index>\d+)\s+(?:/|\d+)\s+(?P<pid>\d+)\s+"
    r"(?P<name>\S+(?: \S+)*?)\s+(?P<mib>\d+)\s*MiB\b"
)
_CARD: Final = re.compile(r"^\s*Card (\d+)\s*$")
_PAIR: Final = re.compile(r"^\s*([A-Z][A-Za-z ]*?)\s*:\s*(.*)$")
_SOURCE: Final = "cnmon"


def parse(report: Report) -> HostFacts:
    """Cards with their readings, and the driver's version."""
    report = dense(report)
    devices: tuple[Accelerator, ...] = ()
    drivers: list[Driver] = []
    for which, start, stop in tables(report, _HEADS):
        if which:
            continue
        found = _DRIVER.search(with_end(report, start))
        if found:
            drivers.append(Driver("cambricon", found[1], _SOURCE))
        for device, version in _cards(report, start, stop):
            devices = join_accelerators(devices, (device,))
            drivers += [Driver("cambricon", version, _SOURCE)] if version else []
        lines = [line.text for line in report.lines[start:stop]]
        for position, text in enumerate(lines):
            first = _FIRST.search(text)
            if first:
                if first["driver"]:
                    drivers.append(Driver("cambricon", first["driver"], _SOURCE))
                second = _SECOND.search(lines[position + 1]) if lines[position + 1 :] else None
                device = _device(first, second, lines)
                devices = join_accelerators(devices, (device,))
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _cards(report: Report, start: int, stop: int) -> Iterator[tuple[Accelerator, str | None]]:
    """The blocks of `cnmon info`, each with its driver: keys below keys that have no value."""
    index: int | None = None
    section, values = "", dict[tuple[str, str], str]()
    for position in range(start + 1, stop):
        text = report.lines[position].text
        card, pair = _CARD.match(text), _PAIR.match(text)
        if card:
            if index is not None:
                yield _card(index, values)
            index, section, values = int(card[1]), "", {}
        elif pair and index is not None and is_whole(report, position):
            key = pair[1].lower()
            if not pair[2]:
                section = key
            else:
                values.setdefault((section, key), pair[2])
                values.setdefault(("", key), pair[2])
    if index is not None:
        yield _card(index, values)


def _card(index: int, values: dict[tuple[str, str], str]) -> tuple[Accelerator, str | None]:
    memory = "physical memory usage"
    place = [
        values.get(("pci", key), "") for key in ("domain id", "bus num", "device", "function")
    ]
    found = re.fullmatch(r"v(\d+(?:\.\d+)+)", values.get(("", "driver"), ""))
    device = Accelerator(
        "mlu",
        index,
        _SOURCE,
        name=values.get(("", "product name")),
        bdf=normal_bdf("{}:{}:{}.{}".format(*place)),
        uuid=values.get(("", "uuid")),
        memory_total_bytes=binary_size(values.get((memory, "total"))),
        memory_used_bytes=binary_size(values.get((memory, "used"))),
        health=Health(
            temperature_c=number(values.get(("temperature", "chip"))),
            power_w=number(values.get(("power", "usage"))),
            power_cap_w=number(values.get(("power", "cap"))),
            utilization_percent=number(values.get(("utilization", "mlu average"))),
        ),
    )
    return device, found[1] if found else None


def _device(first: re.Match[str], second: re.Match[str] | None, lines: list[str]) -> Accelerator:
    rows = [row for line in lines if (row := _PROCESS.search(line))]
    total = second["total"] if second else None
    return Accelerator(
        "mlu",
        int(first["index"]),
        _SOURCE,
        name=first["name"],
        bdf=normal_bdf(first["bdf"] or ""),
        memory_total_bytes=int(total) * MIB if total else None,
        memory_used_bytes=int(second["used"]) * MIB if second and total else None,
        health=Health(
            temperature_c=float(second["temperature"]) if second else None,
            power_w=float(second["power"]) if second else None,
            power_cap_w=float(second["cap"]) if second else None,
            utilization_percent=float(first["load"]),
        ),
        processes=tuple(
            dict.fromkeys(
                DeviceProcess(int(row["pid"]), row["name"], int(row["mib"]) * MIB)
                for row in rows
                if row["index"] == first["index"]
            )
        ),
    )
