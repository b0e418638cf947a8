"""Host facts: an immutable snapshot of one machine, collected live or read from a report.

Everything is a frozen dataclass of tuples and plain values, so that a snapshot can be compared,
kept and sent as JSON. A value nobody could read is None (or an empty tuple), and
`HostFacts.unknown` says where it would have come from. Sizes are bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from vllm_adapter.contract.reading import Fault, form, plain, read
from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts.device_facts import Accelerator, Driver, LinkMatrix
from vllm_adapter.hostfacts.software_facts import Line, TorchBuild, VllmFacts

__all__ = [
    "Accelerator",
    "CgroupLimits",
    "CpuFacts",
    "CpuSet",
    "DeviceNode",
    "Driver",
    "HostFacts",
    "Line",
    "LinkMatrix",
    "MemoryFacts",
    "NumaNode",
    "OsFacts",
    "PciDevice",
    "TorchBuild",
    "VllmFacts",
]

_FORMS: Final = {
    "bdf": r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]",
    "vendor": "[0-9a-f]{4}",
    "device": "[0-9a-f]{4}",
    "class_code": "0x[0-9a-f]{6}",
}
"""The forms of a PCI function's fields, also of those that no file gave."""


@dataclass(frozen=True, slots=True)
class OsFacts:
    """The operating system."""

    name: str | None = None
    """As `platform.system()` has it, such as "Linux"."""
    release: str | None = None
    """The kernel's release."""
    machine: str | None = None
    """The machine's type, such as "x86_64"."""
    distribution: str | None = None
    """Its own name for itself, such as "Ubuntu 22.04.5 LTS"."""
    libc: str | None = None
    """The C library, such as "glibc 2.35"."""
    environment: tuple[str, ...] = ()
    """Where it runs, sorted: "container", "docker", "podman", "kubernetes", "wsl1", "wsl2", "vm",
    "azure", "aws", "gcp", "android", "termux", and "hypervisor:NAME"."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function. All digits are lower-case hexadecimal.

    Another form is a ValueError, so that matching can compare strings.
    """

    bdf: Annotated[str, form(_FORMS["bdf"], "a PCI address such as 0000:3b:00.0")]
    """Its address on the bus, such as "0000:3b:00.0"."""
    vendor: Annotated[str, form(_FORMS["vendor"], "four lower-case hexadecimal digits")]
    """The vendor's id: four digits without 0x."""
    device: Annotated[str, form(_FORMS["device"], "four lower-case hexadecimal digits")]
    """The device's id: four digits without 0x."""
    class_code: Annotated[str, form(_FORMS["class_code"], "a PCI class such as 0x030200")]
    """Base class, subclass and programming interface: "0x030200"."""
    numa_node: int | None = None
    """The NUMA node; null where the kernel names no node (-1)."""
    driver: str | None = None
    """The kernel driver; null where none is bound."""

    def __post_init__(self) -> None:
        for name, pattern in _FORMS.items():
            value = getattr(self, name)
            if not re.fullmatch(pattern, value):
                raise ValueError(f"{name} is {value!r}, which is not its form of a PCI device")

    def __str__(self) -> str:
        return f"PCI {self.bdf} is {self.vendor}:{self.device}, class {self.class_code[:6]}"


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One accelerator node under /dev."""

    path: str
    """Its path under /dev."""
    kind: str
    """What it is: "char", "block", "file" or "other"."""
    readable: bool
    """What the kernel answers for this process without opening the node."""
    writable: bool
    """What the kernel answers for this process without opening the node."""
    group: int | None = None
    """The number of its group."""


@dataclass(frozen=True, slots=True)
class CpuSet:
    """What this process may use: logical CPUs, and NUMA nodes of memory."""

    cpus: tuple[int, ...] = ()
    """Logical CPUs that the process may use."""
    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes whose memory the process may use."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The tightest limit of this process's control group and its parents; None is no limit."""

    memory_limit_bytes: int | None = None
    """The tightest memory limit of this group and its parents."""
    cpu_quota_cores: float | None = None
    """The tightest CPU quota, in cores."""


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """The machine's CPUs."""

    model: str | None = None
    """The processor's name."""
    flags: tuple[str, ...] = ()
    """The kernel's ISA names, sorted."""
    logical: int | None = None
    """Online CPUs."""
    cores: int | None = None
    """Physical cores of the online CPUs."""
    sockets: int | None = None
    """Sockets of the online CPUs."""
    offline: tuple[int, ...] = ()
    """CPUs that are present and switched off."""


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node. A node without CPUs holds memory alone, such as HBM of a device."""

    id: int
    """The kernel's number of the node."""
    cpus: tuple[int, ...] = ()
    """Logical CPUs of the node."""
    memory_bytes: int | None = None
    """The node's memory."""
    distances: tuple[int, ...] = ()
    """The kernel's, to each node in the order of their ids."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Host memory. A control group may allow less: see `CgroupLimits`."""

    total_bytes: int | None = None
    """All memory of the host."""
    available_bytes: int | None = None
    """What the kernel says a program could take."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One machine."""

    os: OsFacts = OsFacts()
    """The operating system."""
    pci: tuple[PciDevice, ...] = ()
    """PCI functions."""
    nodes: tuple[DeviceNode, ...] = ()
    """Accelerator nodes under /dev."""
    modules: tuple[str, ...] = ()
    """Loaded kernel modules, sorted."""
    cpuset: CpuSet = CpuSet()
    """What the process may use."""
    cgroup: CgroupLimits = CgroupLimits()
    """Limits of the control group."""
    cpu: CpuFacts = CpuFacts()
    """The machine's CPUs."""
    memory: MemoryFacts = MemoryFacts()
    """Host memory."""
    python: str | None = None
    """Python's version."""
    torch: TorchBuild | None = None
    """Null where torch is not installed, or nothing reports it."""
    unknown: tuple[tuple[str, str], ...] = ()
    """(field, where) pairs: ("memory.total_bytes", "/proc/meminfo: MemTotal")."""
    numa: tuple[NumaNode, ...] = ()
    """Sorted by id."""
    accelerators: tuple[Accelerator, ...] = ()
    """Devices, as tools, drivers or torch reported them."""
    drivers: tuple[Driver, ...] = ()
    """Versions of drivers, firmware and toolkits, and where each was read."""
    links: tuple[LinkMatrix, ...] = ()
    """Tables of links between devices."""
    vllm: VllmFacts | None = None
    """The installed vLLM; null where there is none, or nothing reports it."""
    packages: tuple[tuple[str, str], ...] = ()
    """(name, version) of installed Python packages that matter."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that matter to a device, sorted; secrets are left out."""
    report: tuple[Line, ...] = ()
    """The pasted text line by line, cleaned, where there was one; of a machine that was asked
    live, what its tools printed, each below "$ " and its command."""

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values, under the attributes' own names."""
        raw: dict[str, Any] = plain(self)
        return raw

    @classmethod
    def from_json(cls, raw: Any, *, newer: bool = False) -> HostFacts:
        """The facts that `to_json` wrote; a key that is left out takes its default.

        With `newer`, unknown keys are left out: a later release wrote them.

        Raises:
            InputError: a value of another type, a form that is not PCI's, or an unknown key.
        """
        try:
            return read(raw, cls, newer=newer)
        except Fault as fault:
            raise InputError(
                f"host facts: {fault}",
                hint="give host facts in the form that HostFacts.to_json writes",
            ) from None

    def where(self, field: str) -> str | None:
        """Where an unknown field would have come from; None if the field is known."""
        return next((place for name, place in self.unknown if name == field), None)

    def driver(self, component: str) -> Driver | None:
        """The driver or toolkit of that name; None if nothing reported it."""
        return next((one for one in self.drivers if one.component == component), None)

    def package(self, name: str) -> str | None:
        """The version of an installed Python package, by its normalised name."""
        return next((version for found, version in self.packages if found == name), None)

    def variable(self, name: str) -> str | None:
        """The value of an environment variable; None where it is not set, or not reported."""
        return next((value for found, value in self.environment if found == name), None)
