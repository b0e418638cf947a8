"""`inxi -G` or `inxi -F`: the Graphics section. A camera is listed there as a device, too."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Driver
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.pci_ids import ARCHS
from vllm_adapter_doctor.report.parsers._common import normal_bdf, without_blank_lines
from vllm_adapter_doctor.report.parsers._display import in_processor, maker_of_text
from vllm_adapter_doctor.report.text import Report
from vllm_adapter_doctor.vendor_data.driver_tables import without_version

_SECTION: Final = re.compile(r"^\s*Graphics:")
_NEXT: Final = re.compile(r"^(\s*)[A-Z][A-Za-z]+:(?:\s|$)")
_DEVICE: Final = re.compile(r"\b(?:Device|Card)(?:-\d+)?:\s+")
_END: Final = re.compile(r"\b(?:Display|OpenGL|API|Monitor-\d+|Message|Info|Tools)\b:")
_FIELD: Final = re.compile(r"\b(driver|v|bus-ID|bus ID|chip-ID|chip ID|type|vendor):\s+(\S+)")


def parse(report: Report) -> HostFacts:
    """Graphics devices on PCI, in the order of the list, counted by vendor."""
    report = without_blank_lines(report)
    devices: list[Accelerator] = []
    drivers: list[Driver] = []
    for start, _ in report.find(_SECTION):
        for words in _entries(report, start) if not devices else ():
            fields = dict(_FIELD.findall(words))
            if fields.get("type") == "USB" or fields.get("driver") == "uvcvideo":
                continue
            name = re.split(r"\s+(?:vendor|driver|type|bus[- ]ID|chip[- ]ID):", words)[0].strip()
            made = maker_of_text(name, "Graphics")
            if made is None:
                continue
            bdf = normal_bdf(fields.get("bus-ID") or fields.get("bus ID") or "")
            driver = fields.get("driver")
            part = in_processor(made[0], name, bdf)
            devices.append(
                Accelerator(
                    made[0],
                    sum(device.vendor == made[0] for device in devices),
                    "inxi",
                    name=name,
                    bdf=bdf,
                    arch=ARCHS.get(fields.get("chip-ID") or fields.get("chip ID") or ""),
                    integrated=part,
                    unified_memory=True if part else None,
                    driver=None if driver in (None, "N/A") else driver,
                )
            )
            version = fields.get("v", "")
            own = driver in VENDORS[made[0]].drivers and driver not in without_version()
            if driver and own and re.fullmatch(r"\d+(?:\.\d+)+", version):
                drivers.append(Driver(driver, version, "inxi"))
    return HostFacts(accelerators=tuple(devices), drivers=tuple(dict.fromkeys(drivers)))


def _entries(report: Report, start: int) -> list[str]:
    """The words of each device; inxi breaks its lines at the terminal's width."""
    lines = [report.lines[start].text]
    indent = len(lines[0]) - len(lines[0].lstrip())
    for line in report.lines[start + 1 :]:
        section = _NEXT.match(line.text)
        if (section and len(section[1]) <= indent) or not line.text.strip():
            break
        lines.append(line.text)
    text = " ".join(line.strip() for line in lines)
    entries = _DEVICE.split(text)[1:]
    if not report.ended and start + len(lines) == len(report.lines) and not _END.search(text):
        entries = entries[:-1]  # it may be cut, before the word that says it is a camera
    return [_END.split(words)[0] for words in entries]
