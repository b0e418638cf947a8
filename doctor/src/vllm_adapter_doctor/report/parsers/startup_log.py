"""Start-up logs and tracebacks of vLLM, sglang and torch: what they say of the machine.

What went wrong is the doctor's to say; here are versions, plug-ins, the platform and devices.
"""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.facts import Accelerator, Driver, HostFacts, TorchBuild, VllmFacts
from vllm_adapter_doctor.report.parsers._log_devices import devices
from vllm_adapter_doctor.report.parsers._packages import (
    is_relevant_package,
    normalised,
    vllm_build,
)
from vllm_adapter_doctor.report.text import Report

_VLLM: Final = (
    re.compile(r"vLLM (?:API |OpenAI )?server version:? (\d[\w.+-]*)"),
    re.compile(r"Initializing an? (?:V1 )?LLM engine \(v(\d[\w.+-]*)\)"),
    re.compile(r"^\W*vLLM(?: version)?`?\W{1,4}v?(\d+\.\d+\.\d[\w.+-]*)`?$", re.I),
    re.compile(r"vllm\.__version__\W+(\d+\.\d+[\w.+-]*)"),
)
_TORCH: Final = (
    re.compile(r"\bPyTorch version (\d+\.\d+[\w.+-]*) available"),
    re.compile(r"^\W*(?:PyTorch|torch)(?: version)?`?\W{1,4}v?(\d+\.\d+\.\d[\w.+-]*)`?$", re.I),
    re.compile(r"torch\.__version__\W+(\d+\.\d+[\w.+-]*)"),
)
_AVAILABLE: Final = re.compile(
    r"torch\.(?:cuda|xpu|npu|hpu|musa|mlu)\.is_available\(\)\W+(True|False)\b"
)
_ARCHS: Final = re.compile(
    r"current PyTorch install supports CUDA capabilities ((?:(?:sm|compute)_\d+\w? ?)+)"
)
_LIST: Final = re.compile(r"get_arch_list\(\)\W+((?:'(?:sm|compute|gfx)\w+'(?:, )?)+)")
_BUILT: Final = re.compile(r"torch\.version\.(cuda|hip|xpu)\W+(\d[\w.-]*)")
_COUNT: Final = re.compile(r"torch\.(?:cuda|xpu|npu|hpu)\.device_count\(\)\W+(\d{1,3})\b")
_WRAPPED: Final = re.compile(r"than or equal to the number\s+of visible devices \((\d{1,3})\)")
_GROUP: Final = re.compile(r"(?:Available|Loading|loading|available) plugins for group (\S+?):?$")
_NONE: Final = re.compile(r"No plugins for group (\S+) found")
_PLUGIN: Final = (
    re.compile(r"(?:^\s*|\] )- (?P<name>[\w.-]+) -> (?P<value>[\w.]+(?::[\w.]+)?)$"),
    re.compile(r"\bname=(?P<name>[\w.-]+), value=(?P<value>[\w.]+:[\w.]+)"),
)
_PLATFORM: Final = (
    re.compile(r"Automatically detected platform (\w+)\."),
    re.compile(r"Platform plugin (\w+) is activated"),
    re.compile(r"current platform type (\w+)\."),
    re.compile(r"current_platform\.device_name\W+(\w+)$"),
)
_DEVICE: Final = re.compile(r"\bdevice_config=(cpu|xpu|tpu|hpu|neuron)\b")
_FOUND: Final = re.compile(r"driver on your system is too old \(found version (\d{4,6})\)")
_FREE: Final = (
    (
        "nvidia",
        re.compile(
            r"^\W*(?:NVIDIA )?driver(?: version)?`?\W{1,5}(\d{3}\.\d{2,3}(?:\.\d{2,3})?)\b", re.I
        ),
    ),
    ("nvml", re.compile(r"NVML library version: (\d{3}\.\d+(?:\.\d+)?)")),
    ("cuda", re.compile(r"^\W*`?nvidia-smi`? CUDA(?: version)?\W{1,5}(\d{1,2}\.\d{1,2})\b", re.I)),
    ("amdgpu", re.compile(r"ROCk module version (\d[\w.-]*) is loaded")),
)
_PATH: Final = re.compile(r"/(flashinfer|flash_attn|triton|torch)-(\d+\.\d+\.\d[\w.+]*)/")


def parse(report: Report) -> HostFacts:
    """The facts in a log; words of a finding that only sound like facts are not taken."""
    report = report.settled
    torch = _torch(report)
    vllm = _vllm(report)
    packages = {
        normalised(found[1]): found[2].rstrip(".")
        for _, found in report.find(_PATH)
        if is_relevant_package(normalised(found[1]))
    }
    seen: tuple[Accelerator, ...] = devices(report)
    return HostFacts(
        torch=torch,
        vllm=vllm,
        accelerators=seen,
        drivers=_drivers(report),
        modules=("amdgpu",) if report.first(re.compile(r"\bROCk module .*is loaded")) else (),
        packages=tuple(sorted(packages.items())),
    )


def _first(report: Report, patterns: tuple[re.Pattern[str], ...]) -> str | None:
    return next(
        (found[1].rstrip(".") for pattern in patterns if (found := report.first(pattern))), None
    )


def _torch(report: Report) -> TorchBuild | None:
    number = _first(report, _TORCH)
    archs = report.first(_ARCHS)
    listed = report.first(_LIST)
    names: list[str] = archs[1].split() if archs else []
    names = names or (re.findall(r"'(\w+)'", listed[1]) if listed else [])
    said = [found[1] == "True" for _, found in report.find(_AVAILABLE)]
    built = {found[1]: found[2] for _, found in reversed(list(report.find(_BUILT)))}
    count = report.first(_COUNT) or _WRAPPED.search(report.text)
    build = TorchBuild(
        number,
        (number or "").partition("+")[2] or None,
        archs=tuple(names),
        available=any(said) if said else None,
        visible_devices=int(count[1]) if count else None,
        **built,
    )
    return build if build != TorchBuild() else None


def _vllm(report: Report) -> VllmFacts | None:
    """Version, plug-ins by group, and the platform: the last that the log says was chosen."""
    version = _first(report, _VLLM)
    plugins: dict[tuple[str, str, str], None] = {}
    group: str | None = None
    platform: str | None = None
    for line in report.lines:
        text = line.text
        if found := _GROUP.search(text):
            group = found[1]
        elif _NONE.search(text):
            group = None
        for pattern in _PLUGIN:
            if group and (found := pattern.search(text)):
                plugins[(group, found["name"], found["value"])] = None
        for pattern in _PLATFORM:
            if found := pattern.search(text):
                platform = found[1]
    if platform is None and (config := report.first(_DEVICE)):
        platform = config[1]
    if not (version or plugins or platform):
        return None
    return VllmFacts(version, build=vllm_build(version), plugins=tuple(plugins), platform=platform)


def _drivers(report: Report) -> tuple[Driver, ...]:
    found = []
    if too_old := report.first(_FOUND):
        number = int(too_old[1])
        served = f"{number // 1000}.{number % 1000 // 10}"
        found.append(Driver("cuda", served, f"found version {too_old[1]}"))
    for component, pattern in _FREE:
        if reported := report.first(pattern):
            found.append(Driver(component, reported[1], _source(reported[0], reported[1])))
    return tuple(found)


def _source(text: str, version: str) -> str:
    """The words before a version, without marks: "nvidia-smi CUDA"."""
    return re.sub(r"[^\w -]", "", text.partition(version)[0]).strip(" -") or "log"
