"""`lspci`, with `-nn`, `-n`, `-k`, `-v` or without: display devices and accelerators.

Ids that are printed become PCI functions. Devices are recognised by words where there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Health
from vllm_adapter.hostfacts.facts import HostFacts, PciDevice
from vllm_adapter.hostfacts.known_vendors import derives, is_integrated, vendor_of
from vllm_adapter.hostfacts.pci_ids import ARCHS
from vllm_adapter_doctor.report.parsers._common import (
    is_complete_line,
    normal_bdf,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._display import in_processor, maker_of_text
from vllm_adapter_doctor.report.text import Report

_GROUP: Final = r"(?:IOMMU [Gg]roup:?\s+\d+:?\s+)?"  # scripts that list the IOMMU's groups
_BDF: Final = r"(?P<bdf>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_LINE: Final = re.compile(
    rf"^\s*{_GROUP}{_BDF}\s+"
    rf"(?P<kind>(?:3D|[A-Z])[A-Za-z0-9/,() -]+?)(?: \[(?P<code>[0-9a-f]{{4}})\])?:"
    r" (?P<name>\S.*?)(?: \[(?P<ids>[0-9a-f]{4}:[0-9a-f]{4})\])?(?: \(rev (?P<rev>[0-9a-f]{2})\))?"
    r"(?: \(driver: (?P<driver>[\w-]+)\))?"
    r"(?: \(prog-if (?P<interface>[0-9a-f]{2})\b.*)?$"
)
_NUMBERS: Final = re.compile(
    rf"^\s*{_BDF}\s+(?P<code>[0-9a-f]{{4}}): (?P<ids>[0-9a-f]{{4}}:[0-9a-f]{{4}})(?=\s|$)"
)
_OTHER_KINDS: Final = {"System peripheral": "0880", "Unassigned class": "ff00"}
_KINDS: Final = {
    "VGA compatible controller": "0300",
    "3D controller": "0302",
    "Display controller": "0380",
    "Processing accelerators": "1200",
}
_DRIVER: Final = re.compile(r"^\s*Kernel driver in use: (\S+)\s*$")
_NODE: Final = re.compile(r"^\s*(?:Flags: .*, )?NUMA node:? (\d+)(?=,|\s|$)")
_UNKNOWN: Final = re.compile(r"\bDevice (?:([0-9a-f]{4}):)?([0-9a-f]{4})\b")


@dataclass(slots=True)
class _Function:
    bdf: str
    code: str
    kind: str
    name: str | None
    ids: str | None
    revision: str | None = None
    interface: str = "00"
    driver: str | None = None
    node: int | None = None
    words: str = ""


def parse(report: Report) -> HostFacts:
    """PCI functions with ids, and accelerators in the order of the list, counted by vendor."""
    report = without_blank_lines(report)
    pci: list[PciDevice] = []
    devices: list[Accelerator] = []
    modules: set[str] = set()
    functions = {one.bdf: one for one in reversed(list(_functions(report)))}
    for one in reversed(functions.values()):
        made = maker_of_text(one.words, one.kind) if one.kind else None
        ids = one.ids
        unknown = _UNKNOWN.search(one.words)
        if ids is None and unknown and (unknown[1] or made):
            ids = f"{unknown[1] or (made or ('', ''))[1]}:{unknown[2]}"
        function = _pci(one, ids) if ids else None
        if function and one.ids:
            pci.append(function)
        if one.driver:
            modules.add(one.driver.replace("-", "_"))
        row = vendor_of(function) if function else None
        vendor = row.adapter if row else made[0] if made and one.code in _KINDS.values() else None
        if vendor is None or (made and derives(made[0], vendor)):
            continue
        index = sum(device.vendor == vendor for device in devices)
        name = one.name or (row.name if row else "")
        part = in_processor(vendor, one.words or name, one.bdf)
        if part is None and function and is_integrated(function):
            part = True
        health = Health()
        if one.revision == "ff":
            health = Health(errors=("the device does not answer on the PCI bus (revision ff)",))
        devices.append(
            Accelerator(
                vendor,
                index,
                "lspci",
                name=one.name,
                bdf=one.bdf,
                arch=ARCHS.get(ids or ""),
                integrated=part,
                unified_memory=True if part else None,
                numa_nodes=() if one.node is None else (one.node,),
                driver=one.driver,
                health=health,
            )
        )
    return HostFacts(
        pci=tuple(sorted(pci, key=lambda function: function.bdf)),
        accelerators=tuple(devices),
        modules=tuple(sorted(modules)),
    )


def _functions(report: Report) -> Iterator[_Function]:
    current: _Function | None = None
    for position, line in enumerate(report.lines):
        whole = is_complete_line(report, position)
        found = _LINE.match(line.text)
        numbers = None if found else _NUMBERS.match(line.text)
        if found or numbers:
            if current:
                yield current
            if found:
                current = _named(found, whole)
            elif numbers:
                bdf = normal_bdf(numbers["bdf"]) or ""
                current = _Function(bdf, numbers["code"], "", None, numbers["ids"])
            continue
        if current and whole:
            driver, node = _DRIVER.match(line.text), _NODE.search(line.text)
            if driver:
                current.driver = driver[1]
            if node:
                current.node = int(node[1])
    if current:
        yield current


def _named(found: re.Match[str], whole: bool) -> _Function | None:
    kind, name = found["kind"], found["name"]
    code = found["code"] or _KINDS.get(kind) or _OTHER_KINDS.get(kind)
    if code is None:
        return None
    return _Function(
        normal_bdf(found["bdf"]) or "",
        code,
        kind,
        name if (whole or found["ids"] or found["rev"]) and not name.endswith(" Device") else None,
        found["ids"],
        found["rev"],
        found["interface"] or "00",
        found["driver"],
        words=name,
    )


def _pci(one: _Function, ids: str) -> PciDevice:
    vendor, device = ids.split(":")
    code = f"0x{one.code}{one.interface}"
    return PciDevice(one.bdf, vendor, device, code, one.node, one.driver)
