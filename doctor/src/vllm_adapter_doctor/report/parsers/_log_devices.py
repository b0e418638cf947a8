"""Devices that error messages name, with what those say of them.

The messages speak of the device that a program uses; a number is torch's, of visible devices.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.facts import Accelerator
from vllm_adapter.hostfacts.known_vendors import faces
from vllm_adapter.hostfacts.vendor_files import once
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._silicon import arch_of, underlying_vendor, vendor_of
from vllm_adapter_doctor.report.text import Report

_CAPABILITY: Final = re.compile(
    r"Your (?P<name>\S.{0,80}?) (?:GPU|device) has compute capability "
    r"(?P<capability>\d{1,2}\.\d)\b"
)
_UNSERVED: Final = re.compile(
    r"(?:^|Warning: |Error: )\s*(?P<name>\S.{0,80}?) with CUDA capability "
    r"sm_(?P<sm>\d{2,3})\w? is not compatible with the"
)
_TOO_OLD: Final = re.compile(
    r"Found GPU(?P<index>\d+) (?P<name>\S.{0,80}?) which is of cuda capability "
    r"(?P<capability>\d+\.\d)"
)
_GIB: Final = 1 << 30


@once
def _named() -> re.Pattern[str]:
    return re.compile(
        rf"torch\.(?P<module>cuda|{'|'.join(faces())})\.get_device_name\((?P<index>\d{{0,3}})\)"
        r"\s*[=:]+\s*'?(?P<name>\S.*?)'?$"
    )


@once
def _memory() -> re.Pattern[str]:
    return re.compile(
        rf"(?P<face>CUDA|{'|'.join(faces()).upper()}) out of memory\..{{0,200}}?"
        r"(?:(?P=face)|GPU)[ :](?P<index>\d{1,3})\b.{0,80}?"
        r"(?:total capacity of (?P<one>[\d.]+) GiB|(?P<other>[\d.]+) GiB total capacity)"
    )


def devices(report: Report) -> tuple[Accelerator, ...]:
    """Each device once. "CUDA" and "GPU" alone name no maker."""
    software = underlying_vendor(report.text)
    found: list[Accelerator] = []
    for line in report.lines:
        device = _in(line.text, software)
        if device is not None:
            found = _with(found, device)
    return tuple(found)


def _in(text: str, software: str | None) -> Accelerator | None:
    if said := _CAPABILITY.search(text):
        return _device(said["name"], 0, software, None, said["capability"])
    if said := _UNSERVED.search(text):
        return _device(said["name"], 0, software, None, f"{said['sm'][:-1]}.{said['sm'][-1]}")
    if said := _TOO_OLD.search(text):
        return _device(said["name"], int(said["index"]), software, None, said["capability"])
    if said := _named().search(text):
        face = faces().get(said["module"])
        return _device(said["name"], int(said["index"] or 0), software, face, "")
    if said := _memory().search(text):
        vendor = software or faces().get(said["face"].lower())
        if vendor is None:
            return None
        size = round(float(said["one"] or said["other"]) * _GIB)
        return Accelerator(vendor, int(said["index"]), "torch", memory_total_bytes=size)
    return None


def _device(
    name: str, index: int, software: str | None, face: str | None, capability: str
) -> Accelerator | None:
    vendor = vendor_of(name, software, face)
    if vendor is None:
        return None
    return Accelerator(vendor, index, "torch", name, arch=arch_of(vendor, capability))


def _with(found: list[Accelerator], device: Accelerator) -> list[Accelerator]:
    """The devices with one more; two that agree in vendor and number are one."""
    for at, known in enumerate(found):
        if (known.vendor, known.index) == (device.vendor, device.index):
            both = replace(known, source="log"), replace(device, source="log")
            (joined,) = join_accelerators(both[:1], both[1:])
            found[at] = replace(joined, source="torch")
            return found
    return [*found, device]
