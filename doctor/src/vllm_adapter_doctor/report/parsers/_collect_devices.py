"""The devices in a collect_env dump: the list of `GPU models`, and Intel's two lists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.facts import Accelerator, Driver, TorchBuild
from vllm_adapter.hostfacts.known_vendors import vendors_of_program
from vllm_adapter_doctor.report.parsers._common import binary_size
from vllm_adapter_doctor.report.parsers._fields import ReportField, known_value, parse_bool
from vllm_adapter_doctor.report.parsers._silicon import underlying_vendor, vendor_of
from vllm_adapter_doctor.report.text import Report

_LISTED: Final = re.compile(
    r"^\s*(?:GPU models and configuration\s*:\s*)?GPU (\d{1,3})\s*:\s*(\S.*?)(?: \(UUID: \S+\))?$"
)
_GCN: Final = re.compile(r"^(.*?)\s*\((?:(gfx[0-9a-f]{3,4})\b[^()]*|NoGCNArchName\w*)\)$")
_XPU: Final = re.compile(r"^\s*XPU (\d{1,3}): (\S.*?) \((\d+(?:\.\d+)?GB)\)\s*$")
_MIG: Final = re.compile(
    r"^\s*MIG (?P<profile>(?:\d+c\.)?\d+g\.\S+)\s+Device\s+(?P<number>\d+):"
    r"(?: \(UUID: (?P<uuid>MIG-[^)\s]+)\))?\s*$"
)
_WSL: Final = re.compile(r"(?i)\bmicrosoft-standard\b|\bWSL2?\b")
_LINUX: Final = re.compile(r"\bLinux-\d+\.\d|\bLinux \S+ \d+\.\d+\.\d")
_INTEL: Final = re.compile(r"^\s*[*•-]\s*(?:\[(\d{1,3})\]\s*)?(\S.*)$")
_PROPERTY: Final = re.compile(r"(\w+)=('[^']*'|\[[^\]]*\]|[^,()]+)")


def cuda_devices(
    report: Report, fields: Sequence[ReportField], torch: TorchBuild | None
) -> tuple[Accelerator, ...]:
    """The devices under "GPU models and configuration".

    A list of "GPU n" is `nvidia-smi -L`, all devices of the machine. A single name without a
    number is what a ROCm torch says of its first device. A device whose vendor nothing reports is
    left out.
    """
    head = next((field for field in fields if field.key == "GPU models and configuration"), None)
    software = underlying_vendor(report.text)
    hip = torch is not None and torch.hip is not None
    face = "rocm" if hip else "cuda" if _nvidia(fields) else None
    if head is None:
        start, first = 0, None
    else:
        start, first = head.position, known_value(head.value)
    if first and not re.match(r"GPU \d+", first):
        single = _named(first, 0, "torch", software, face)
        return (single,) if single else ()
    found: dict[int, Accelerator] = {}
    instances: list[Accelerator] = []
    for line in report.lines[start:]:
        listed = _LISTED.match(line.text)
        if listed:
            device = _named(listed[2], int(listed[1]), "nvidia-smi -L", software, face)
            if device and device.vendor not in vendors_of_program(
                "nvidia-smi"
            ):  # another's by that name
                device = replace(device, source="collect_env")
            if device and device.index not in found:
                found[device.index] = device
        elif instance := _MIG.match(line.text):
            instances += _instance(found, instance)
        elif head and line.text.strip() and found:
            break
    return (*(found[index] for index in sorted(found)), *instances)


def _instance(found: dict[int, Accelerator], listed: re.Match[str]) -> list[Accelerator]:
    """A MIG instance below its GPU, which is then split."""
    if not found:
        return []
    parent = found[max(found)]
    found[parent.index] = replace(parent, partition="MIG")
    return [
        Accelerator(
            parent.vendor,
            parent.index,
            parent.source,
            name=parent.name,
            card=parent.index,
            die=int(listed["number"]),
            uuid=listed["uuid"],
            partition=listed["profile"],
        )
    ]


def kunlun_devices(report: Report, fields: Sequence[ReportField]) -> tuple[Accelerator, ...]:
    """The lines "XPU 0: P800 OAM (96.0GB)" of Kunlunxin's plug-in."""
    head = next((field for field in fields if field.key == "XPU models and configuration"), None)
    found: list[Accelerator] = []
    for line in report.lines[head.position + 1 :] if head else ():
        device = _XPU.match(line.text)
        if not device:
            break
        size = binary_size(device[3])
        found.append(
            Accelerator(
                "kunlunxin", int(device[1]), "collect_env", device[2], memory_total_bytes=size
            )
        )
    return tuple(found)


def _nvidia(fields: Sequence[ReportField]) -> bool:
    return any(
        field.key == "Nvidia driver version" and known_value(field.value) for field in fields
    )


def _named(
    name: str, index: int, source: str, software: str | None, face: str | None
) -> Accelerator | None:
    gcn = _GCN.match(name)
    arch = None
    if gcn:
        name, arch = gcn[1], gcn[2]
    vendor = vendor_of(name, software, "rocm" if arch else face)
    if vendor is None:
        return None
    return Accelerator(vendor, index, source, name or None, arch=arch)


def nvidia_component(version: str | None, text: str) -> str:
    """ "windows" for the driver of a WSL host, which `nvidia-smi` in WSL prints.

    Drivers of Windows have two numbers; those of Linux have three since 530, and two again in some
    releases since 595. The kernel tells, where the report names one.
    """
    found = re.fullmatch(r"(\d{3})\.\d{2}", version or "")
    if found is None or int(found[1]) < 530:
        return "nvidia"
    if _WSL.search(text):
        return "windows"
    linux = _LINUX.search(text) is not None
    return "nvidia" if linux or int(found[1]) >= 595 else "windows"


def intel_devices(
    report: Report, fields: Sequence[ReportField]
) -> tuple[tuple[Accelerator, ...], int | None, tuple[Driver, ...]]:
    """Intel's devices, how many torch detected, and versions of their software.

    "onboard" is what `xpu-smi` discovered, "detected" is what torch sees. Where both say the same
    names, the properties are of the devices in that order. The number detected is known only where
    the list does not end with the text.
    """
    onboard = [name for _, name in _items(report, fields, "Intel GPU models onboard")[0]]
    listed, closed = _items(report, fields, "Intel GPU models detected")
    detected = [device for at, text in listed if (device := _property(at, text))]
    names = [device.name for device in detected]
    if onboard and names == onboard[: len(names)]:
        rest = [
            Accelerator("xpu", index, "xpu-smi discovery", name)
            for index, name in enumerate(onboard)
            if index >= len(names)
        ]
        devices = [*detected, *rest]
    else:
        devices = detected or [
            Accelerator("xpu", index, "xpu-smi discovery", name)
            for index, name in enumerate(onboard)
        ]
    drivers = [
        Driver("level-zero", device.driver, "driver_version")
        for device in detected[:1]
        if device.driver
    ]
    for _, text in _items(report, fields, "Intel GPU driver version")[0]:
        package, _, number = text.partition(":")
        component = {"libze1": "level-zero", "libze-intel-gpu1": "level-zero"}.get(
            package.strip(), "compute-runtime" if "opencl" in package else None
        )
        if component and number.strip():
            drivers.append(Driver(component, number.strip(), package.strip()))
    return tuple(devices), len(detected) if detected and closed else None, tuple(drivers)


def _items(
    report: Report, fields: Sequence[ReportField], key: str
) -> tuple[list[tuple[int | None, str]], bool]:
    """The starred lines after a key, and whether another line comes after them."""
    head = next((field for field in fields if field.key == key), None)
    found: list[tuple[int | None, str]] = []
    if head is None:
        return found, False
    for line in report.lines[head.position + 1 :]:
        item = _INTEL.match(line.text)
        if not item and not line.text:
            continue
        if not item:
            return found, True
        found.append((int(item[1]) if item[1] else None, item[2].strip()))
    return found, False


def _property(index: int | None, text: str) -> Accelerator | None:
    """The device in "[0] _XpuDeviceProperties(name='...', total_memory=24480MB, ...)"."""
    if index is None or "DeviceProperties(" not in text:
        return None
    said = {key: value.strip("'") for key, value in _PROPERTY.findall(text)}
    whole = text.endswith(")")
    return Accelerator(
        "xpu",
        index,
        "torch",
        said.get("name"),
        uuid=_uuid(said.get("uuid")),
        memory_total_bytes=binary_size(said.get("total_memory")),
        integrated=_flag(said.get("is_integrated_gpu")) if whole else None,
        driver=said.get("driver_version"),
    )


def _uuid(text: str | None) -> str | None:
    """None for an id of zeros: someone took it out."""
    return text if text and re.search(r"[1-9a-fA-F]", text) else None


def _flag(text: str | None) -> bool | None:
    return {"0": False, "1": True}.get(text or "", parse_bool(text))
