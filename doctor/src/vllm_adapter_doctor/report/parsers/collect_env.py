"""`collect_env`: vLLM's in both layouts, torch's own, and vllm-ascend's.

`Key: value`, or `Key   : value` under banners. CPU, packages, variables and tables of devices
inside the dump have parsers of their own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.facts import Driver, HostFacts, OsFacts, TorchBuild, VllmFacts
from vllm_adapter_doctor.report.parsers._collect_devices import (
    cuda_devices,
    intel_devices,
    kunlun_devices,
    nvidia_component,
)
from vllm_adapter_doctor.report.parsers._fields import (
    ABSENT,
    UNKNOWN,
    FieldNames,
    ReportField,
    known_value,
    parse_bool,
    version,
)
from vllm_adapter_doctor.report.parsers._os_text import distribution, libc, platform
from vllm_adapter_doctor.report.parsers._packages import vllm_build
from vllm_adapter_doctor.report.parsers._silicon import is_plugin_device
from vllm_adapter_doctor.report.text import Report

_KEYS: Final = FieldNames(
    (
        "PyTorch version",
        "Is debug build",
        "CUDA used to build PyTorch",
        "ROCM used to build PyTorch",
        "XPU used to build PyTorch",
        "OS",
        "GCC version",
        "Clang version",
        "CMake version",
        "Libc version",
        "Python version",
        "Python platform",
        "Is CUDA available",
        "CUDA runtime version",
        "CUDA_MODULE_LOADING set to",
        "GPU models and configuration",
        "Nvidia driver version",
        "cuDNN version",
        "Is XPU available",
        "XPU runtime version",
        "Level Zero loader version",
        "Level Zero driver version",
        "vLLM XPU kernels version",
        "Intel GPU driver version",
        "Intel GPU models onboard",
        "Intel GPU models detected",
        "HIP runtime version",
        "MIOpen runtime version",
        "XPU models and configuration",
        "Kunlun driver version",
        "Is XNNPACK available",
        "Caching allocator config",
        "CPU",
        "Versions of relevant libraries",
        "ROCM Version",
        "Neuron SDK Version",
        "vLLM Version",
        "vLLM Ascend Version",
        "vLLM Build Flags",
        "GPU Topology",
        "CANN",
        "ENV Variables",
    )
)
_CANN: Final = re.compile(r"^\s*version=(\d+\.\d[\w.]*)$")
_ASKED: Final = {
    "OS": "os.distribution",
    "Libc version": "os.libc",
    "Python platform": "os.release",
    "Nvidia driver version": "drivers.nvidia",
}


def parse(report: Report) -> HostFacts:
    """The facts of the first dump in the report.

    "Could not collect" leaves a value unknown, "N/A" and "No CUDA" say that there is none. The
    line "CUDA Archs: Not Set; ROCm: Disabled" is about variables, not the build: it is not read.
    """
    report = report.settled
    fields = _first_dump(_KEYS.fields(report))
    values: dict[str, str] = {}
    for field in fields:
        if field.value and not values.get(field.key):
            values[field.key] = field.value
    torch = _torch(values, report)
    cuda = torch is not None and bool(torch.cuda or (torch.local or "").startswith("cu1"))
    asked = tuple(
        (name, f"collect_env: {key}")
        for key, name in _ASKED.items()
        if values.get(key, "").lower() in UNKNOWN and (cuda or key != "Nvidia driver version")
    )
    detected, visible, intel_drivers = intel_devices(report, fields)
    if torch is not None and visible is not None:
        torch = replace(torch, visible_devices=visible)
    ascend = version(values.get("vLLM Ascend Version"))
    kernels = version(values.get("vLLM XPU kernels version"))
    said = (("vllm-ascend", ascend), ("vllm-xpu-kernels", kernels))
    return HostFacts(
        os=_os(values),
        python=version(values.get("Python version")),
        torch=torch,
        accelerators=cuda_devices(report, fields, torch)
        + kunlun_devices(report, fields)
        + detected,
        drivers=_drivers(values, report) + intel_drivers,
        vllm=_vllm(values.get("vLLM Version")),
        packages=tuple((name, number) for name, number in said if number),
        unknown=asked,
    )


def _first_dump(fields: list[ReportField]) -> list[ReportField]:
    """Fields up to a second machine's: a torch version with an operating system after it."""
    heads = [at for at, one in enumerate(fields) if one.key == "OS" and one.value.endswith(")")]
    if len(heads) < 2:
        return fields
    starts = (
        at for at, one in enumerate(fields) if one.key == "PyTorch version" and at > heads[0]
    )
    return fields[: min(next(starts, heads[1]), heads[1])]


def _os(values: dict[str, str]) -> OsFacts:
    named = distribution(known_value(values.get("OS")) or "")
    base = platform(known_value(values.get("Python platform")) or "")
    return OsFacts(
        name=base.name or named.name,
        release=base.release,
        machine=named.machine or base.machine,
        distribution=named.distribution,
        libc=libc(known_value(values.get("Libc version"))),
    )


def _torch(values: dict[str, str], report: Report) -> TorchBuild | None:
    """The build; None for "N/A", by which the dump says that torch cannot be imported."""
    built = {
        name: _build(values.get(f"{key} used to build PyTorch"))
        for name, key in (("cuda", "CUDA"), ("hip", "ROCM"), ("xpu", "XPU"))
    }
    built["xpu"] = built["xpu"] or _build(values.get("XPU runtime version"))
    number = version(values.get("PyTorch version"))
    if number is None and (
        "PyTorch version" in values or not (any(built.values()) or "Is CUDA available" in values)
    ):
        return None
    said = [parse_bool(values.get(f"Is {device} available")) for device in ("CUDA", "XPU")]
    available = True if True in said else (False if False in said else None)
    if available is False and is_plugin_device(report.text):
        available = None
    elif available is False and not any(built.values()):
        # such a torch may reach a device by a plug-in: the packages tell, to their end
        available = False if "[conda]" in report.text else None
    local = (number or "").partition("+")[2] or None
    return TorchBuild(
        number, local, built["cuda"], built["hip"], built["xpu"], available=available
    )


def _build(value: str | None) -> str | None:
    return None if (value or "n/a").lower() in ABSENT else version(value)


def _drivers(values: dict[str, str], report: Report) -> tuple[Driver, ...]:
    key = "Nvidia driver version"
    sought = (
        (nvidia_component(values.get("Nvidia driver version"), report.text), key),
        ("cuda-toolkit", "CUDA runtime version"),
        ("rocm", "ROCM Version"),
        ("rocm", "HIP runtime version"),
        ("miopen", "MIOpen runtime version"),
        ("neuron", "Neuron SDK Version"),
        ("kunlunxin", "Kunlun driver version"),
        ("level-zero", "Level Zero driver version"),
    )
    found = [
        Driver(component, number, key)
        for component, key in sought
        if (number := version(values.get(key)))
    ]
    built = _build(values.get("ROCM used to build PyTorch"))
    if built:
        found.append(Driver("rocm", built, "ROCM used to build PyTorch"))
    return tuple(found + _cann(report))


def _cann(report: Report) -> list[Driver]:
    for position, line in enumerate(report.lines):
        if re.match(r"^\s*package_name=Ascend-cann-(?:toolkit|nnrt|nnae)\b", line.text):
            for following in report.lines[position + 1 : position + 4]:
                if number := _CANN.match(following.text):
                    return [Driver("cann", number[1], "CANN")]
    return []


def _vllm(value: str | None) -> VllmFacts | None:
    """The version and, where it is in the version's tag, the device of the build."""
    if (value or "").lower().startswith("n/a (dev)"):
        return VllmFacts(distribution="vllm")
    number = version(value)
    if not number:
        return None
    return VllmFacts(number, "vllm", vllm_build(number))
