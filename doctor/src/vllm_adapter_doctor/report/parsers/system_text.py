"""Small outputs: `uname -a`, os-release, `ldd --version`, meminfo, `nvcc`, Ascend's version."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.facts import Driver, HostFacts, MemoryFacts, OsFacts
from vllm_adapter_doctor.report.parsers._os_text import MACHINES
from vllm_adapter_doctor.report.text import Report

_UNAME: Final = re.compile(
    rf"^(?:\S*[$#] )?(?P<name>Linux|Darwin) \S+ (?P<release>\d+\.\d+\S*) "
    rf".*?\b(?P<machine>{MACHINES})(?: \S+)*$"
)
_PRETTY: Final = re.compile(r"^PRETTY_NAME=\"?([^\"]+)\"?$")
_LDD: Final = re.compile(r"\bldd \((?:GNU libc|[^()]*GLIBC[^()]*)\) (\d+\.\d+)$")
_MUSL: Final = re.compile(r"^musl libc \(")
_MUSL_VERSION: Final = re.compile(r"^Version (\d+\.\d+\.\d+)$")
_MEMORY: Final = re.compile(r"^(MemTotal|MemAvailable):\s+(\d{1,12}) kB$")
_NVCC: Final = re.compile(r"^Cuda compilation tools, release [\d.]+, V(\d+\.\d+\.\d+)")
_HIP: Final = re.compile(r"^HIP version: (\d[\w.-]*)$")
_ASCEND: Final = re.compile(r"^Version=(\d[\w.]*)$")


def parse(report: Report) -> HostFacts:
    """What these small outputs say; the host's name is not kept."""
    report = report.settled
    system = report.first(_UNAME)
    pretty = report.first(_PRETTY)
    glibc = report.first(_LDD)
    libc = f"glibc {glibc[1]}" if glibc else None
    if libc is None and report.first(_MUSL) and (musl := report.first(_MUSL_VERSION)):
        libc = f"musl {musl[1]}"
    sizes = {found[1]: int(found[2]) << 10 for _, found in reversed(list(report.find(_MEMORY)))}
    drivers = []
    if nvcc := report.first(_NVCC):
        drivers.append(Driver("cuda-toolkit", nvcc[1], "nvcc"))
    if hip := report.first(_HIP):
        drivers.append(Driver("rocm", hip[1], "hipcc"))
    if "ascendhal_version=" in report.text and (ascend := report.first(_ASCEND)):
        drivers.append(Driver("ascend", ascend[1], "driver/version.info"))
    return HostFacts(
        os=OsFacts(
            name=system["name"] if system else None,
            release=system["release"] if system else None,
            machine=system["machine"] if system else None,
            distribution=pretty[1].strip() if pretty else None,
            libc=libc,
        ),
        memory=MemoryFacts(sizes.get("MemTotal"), sizes.get("MemAvailable")),
        drivers=tuple(drivers),
    )
