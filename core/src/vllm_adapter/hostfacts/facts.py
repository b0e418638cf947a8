"""Host facts: an immutable snapshot of one machine, collected live or read from a report.

Everything is a frozen dataclass of tuples and plain values, so that a snapshot can be compared,
kept and sent as JSON. A value nobody could read is None (or an empty tuple), and
`HostFacts.unknown` says where it would have come from. Sizes are bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vllm_adapter.hostfacts._codec import decode, encode
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

_PCI_FORMS = {
    "bdf": re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
    "vendor": re.compile(r"[0-9a-f]{4}"),
    "device": re.compile(r"[0-9a-f]{4}"),
    "class_code": re.compile(r"0x[0-9a-f]{6}"),
}


@dataclass(frozen=True, slots=True)
class OsFacts:
    """The operating system. `name` is as `platform.system()` has it, such as "Linux".

    `distribution` is its own name for itself ("Ubuntu 22.04.5 LTS"), `libc` is "glibc 2.35".
    `environment` says where it runs, sorted: "container", "docker", "podman", "kubernetes",
    "wsl1", "wsl2", "vm", "azure", "aws", "gcp", "android", "termux", and "hypervisor:NAME".
    """

    name: str | None = None
    release: str | None = None
    machine: str | None = None
    distribution: str | None = None
    libc: str | None = None
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function. All digits are lower-case hexadecimal.

    `bdf` is "0000:3b:00.0"; `vendor` and `device` are four digits without 0x; `class_code` is
    always base class, subclass and programming interface: "0x030200". `numa_node` is None where
    the kernel names no node (-1); `driver` is None where none is bound.
    Another form is a ValueError, so that matching can compare strings.
    """

    bdf: str
    vendor: str
    device: str
    class_code: str
    numa_node: int | None = None
    driver: str | None = None

    def __post_init__(self) -> None:
        for name, form in _PCI_FORMS.items():
            value = getattr(self, name)
            if not form.fullmatch(value):
                raise ValueError(f"{name} is {value!r}, which is not its form of a PCI device")

    def __str__(self) -> str:
        return f"PCI {self.bdf} is {self.vendor}:{self.device}, class {self.class_code[:6]}"


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One accelerator node under /dev.

    `kind` is "char", "block", "file" or "other". `readable` and `writable` are what the kernel
    answers for this process without opening the node. `group` is the number of its group.
    """

    path: str
    kind: str
    readable: bool
    writable: bool
    group: int | None = None


@dataclass(frozen=True, slots=True)
class CpuSet:
    """What this process may use: logical CPUs, and NUMA nodes of memory."""

    cpus: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The tightest limit of this process's control group and its parents; None is no limit."""

    memory_limit_bytes: int | None = None
    cpu_quota_cores: float | None = None


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """The machine's CPUs. `flags` are the kernel's ISA names, sorted; `logical` is online CPUs."""

    model: str | None = None
    flags: tuple[str, ...] = ()
    logical: int | None = None
    cores: int | None = None
    sockets: int | None = None
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node. A node without CPUs holds memory alone, such as HBM of a device.

    `distances` are the kernel's, to each node in the order of their ids.
    """

    id: int
    cpus: tuple[int, ...] = ()
    memory_bytes: int | None = None
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Host memory. A control group may allow less: see `CgroupLimits`."""

    total_bytes: int | None = None
    available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One machine. `torch` is None where torch is not installed, or nothing reports it.

    `numa` is sorted by id. `environment` holds variables that matter to a device, sorted; secrets
    are left out. `report` is the pasted text line by line, cleaned, where there was one; of a
    machine that was asked live, what its tools printed, each below "$ " and its command.
    `unknown` holds (field, where) pairs: ("memory.total_bytes", "/proc/meminfo: MemTotal").
    """

    os: OsFacts = OsFacts()
    pci: tuple[PciDevice, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    modules: tuple[str, ...] = ()
    cpuset: CpuSet = CpuSet()
    cgroup: CgroupLimits = CgroupLimits()
    cpu: CpuFacts = CpuFacts()
    memory: MemoryFacts = MemoryFacts()
    python: str | None = None
    torch: TorchBuild | None = None
    unknown: tuple[tuple[str, str], ...] = ()
    numa: tuple[NumaNode, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    drivers: tuple[Driver, ...] = ()
    links: tuple[LinkMatrix, ...] = ()
    vllm: VllmFacts | None = None
    packages: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    report: tuple[Line, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values, under the attributes' own names."""
        raw: dict[str, Any] = encode(self)
        return raw

    @classmethod
    def from_json(cls, raw: Any, *, newer: bool = False) -> HostFacts:
        """The facts that `to_json` wrote; a key that is left out takes its default.

        With `newer`, unknown keys are left out: a later release wrote them.

        Raises:
            InputError: a value of another type, a form that is not PCI's, or an unknown key.
        """
        facts: HostFacts = decode(cls, raw, newer=newer)
        return facts

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
