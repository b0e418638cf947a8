"""sglang's `check_env`: torch's devices by groups, toolkits, and a list of packages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from vllm_adapter.hostfacts.facts import Accelerator, Driver, HostFacts, TorchBuild
from vllm_adapter.hostfacts.known_vendors import faces
from vllm_adapter.hostfacts.vendor_files import LazyMapping, sections
from vllm_adapter_doctor.report.parsers._collect_devices import nvidia_component
from vllm_adapter_doctor.report.parsers._common import cpu_list
from vllm_adapter_doctor.report.parsers._fields import FieldNames, known_value, parse_bool, version
from vllm_adapter_doctor.report.parsers._packages import is_relevant_package, normalised
from vllm_adapter_doctor.report.parsers._silicon import arch_of, underlying_vendor, vendor_of
from vllm_adapter_doctor.report.text import Report
from vllm_adapter_doctor.vendor_data.driver_tables import on_windows

_KEYS: Final = FieldNames(
    (
        "Python",
        *(f"{face} available" for face in ("CUDA", "ROCM", "NPU", "HPU", "MUSA", "XPU")),
        *(f"{face} Driver Version" for face in ("CUDA", "ROCM", "MUSA", "Ascend")),
        "NVCC",
        "HIPCC",
        "MCC",
        "CANN",
        "PyTorch",
    )
)
_GROUP: Final = re.compile(
    r"^\W*(?P<kind>GPU|NPU|HPU|XPU) (?P<ids>\d{1,3}(?:,\d{1,3})*)"
    r"(?P<arch> Compute Capability)?\s*:\s*(?P<value>\S.*)$"
)
_PACKAGE: Final = re.compile(r"^\s*([a-zA-Z][\w.-]*): (\d[\w.+!-]*)$")
_CHIPS: Final[Mapping[str, re.Pattern[str]]] = LazyMapping(
    lambda: {vendor: re.compile(text) for vendor, text in sections("torch", "chip")}
)
"""Where a device's name holds its code, and no compute capability is one."""
_DRIVERS: Final = (
    ("CUDA Driver Version", "nvidia"),
    ("ROCM Driver Version", "amdgpu"),
    ("MUSA Driver Version", "mtgpu"),
    ("Ascend Driver Version", "ascend"),
    ("CANN", "cann"),
)


def parse(report: Report) -> HostFacts:
    """The facts of the first `check_env`. Its devices are those that torch sees.

    A compute capability is one of CUDA only for NVIDIA's devices: AMD's 9.4 is gfx942.
    """
    report = report.settled
    fields = _KEYS.fields(report)
    values: dict[str, str] = {}
    for field in fields:
        values.setdefault(field.key, field.value)
    said = {
        key.split()[0]: parse_bool(value) for key, value in values.items() if "available" in key
    }
    face = _face(said, values)
    devices = _devices(report, face)
    number = version(values.get("PyTorch"))
    torch = None
    if number or devices or said:
        local = (number or "").partition("+")[2] or None
        known = [value for value in said.values() if value is not None]
        visible = len(devices) if devices and number else None  # its line comes after the devices
        available = any(known) if known else None
        torch = TorchBuild(number, local, available=available, visible_devices=visible)
    return HostFacts(
        python=version(values.get("Python")),
        torch=torch,
        accelerators=devices,
        drivers=_drivers(values, report.text),
        packages=_packages(report) if number else (),
    )


def _face(said: dict[str, bool | None], values: dict[str, str]) -> str | None:
    """Which vendor's torch this is, as the report's words have it."""
    known = {"CUDA": "cuda"} | {word.upper(): vendor for word, vendor in faces().items()}
    for word, available in said.items():
        if available and word in known:
            return known[word]
    for word, face in (("ROCM", "rocm"), ("MUSA", "musa"), ("CUDA", "cuda")):
        if version(values.get(f"{word} Driver Version")):
            return face
    return None


def _devices(report: Report, face: str | None) -> tuple[Accelerator, ...]:
    software = underlying_vendor(report.text)
    names: dict[int, tuple[str, str]] = {}
    capabilities: dict[int, str] = {}
    for line in report.lines:
        found = _GROUP.match(line.text)
        if not found:
            continue
        value = found["value"].strip().strip("`*")
        for index in cpu_list(found["ids"]) or ():
            if found["arch"]:
                capabilities.setdefault(index, value)
            else:
                names.setdefault(index, (found["kind"], value))
    devices = []
    for index, (kind, name) in sorted(names.items()):
        vendor = vendor_of(name, software, faces().get(kind.lower(), face))
        if vendor is None:
            continue
        arch = arch_of(vendor, capabilities.get(index, ""))
        if vendor in _CHIPS and (chip := _CHIPS[vendor].fullmatch(name)):
            arch = chip[1].lower()
        devices.append(Accelerator(vendor, index, "torch", name, arch=arch))
    return tuple(devices)


def _drivers(values: dict[str, str], text: str) -> tuple[Driver, ...]:
    found = [
        Driver(nvidia_component(number, text) if on_windows(component) else component, number, key)
        for key, component in _DRIVERS
        if (number := version(values.get(key)))
    ]
    nvcc = re.search(r"\bV(\d+\.\d+\.\d+)", values.get("NVCC", ""))
    if nvcc:
        found.append(Driver("cuda-toolkit", nvcc[1], "NVCC"))
    hipcc = re.search(r"HIP version: (\d[\w.-]*)", values.get("HIPCC", ""))
    if hipcc:
        found.append(Driver("rocm", hipcc[1], "HIPCC"))
    return tuple(found)


def _packages(report: Report) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for line in report.lines:
        package = _PACKAGE.match(line.text)
        if package and is_relevant_package(normalised(package[1])) and known_value(package[2]):
            found.setdefault(normalised(package[1]), package[2])
    return tuple(sorted(found.items()))
