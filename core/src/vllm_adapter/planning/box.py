"""The devices that a plan is for, as data: from facts of a machine, or from a descriptor alone.

Who may be used is decided elsewhere (the doctor's verdicts); `refused` says of whom and why, and
nothing is planned on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_adapter.contract.capability import Capability


@dataclass(frozen=True, slots=True)
class PlanDevice:
    """One device that may be used. `domain` numbers the link domain that it is in.

    `number` is what the vendor's variable takes for it; empty where that is not known.
    """

    id: str
    name: str
    domain: int = 0
    numa_node: int | None = None
    cpus: str = ""
    number: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "id": self.id,
            "name": self.name,
            "domain": self.domain,
            "numa_node": self.numa_node,
            "cpus": self.cpus,
        }


@dataclass(frozen=True, slots=True)
class BoxFlag:
    """A flag for `vllm serve` or for a container, with its reason and its source."""

    text: str
    why: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class LostFeature:
    """A dtype that a verdict takes away, and what is used in its place."""

    feature: str
    to: str
    reason: str
    pointer: str = ""


@dataclass(frozen=True, slots=True)
class PlanBox:
    """Devices of one kind with their descriptor; `origin` says in words where they are known from.

    `domains_why` says how the link domains are known, `numa_why` what binding workers to nodes
    does, or why they are not `numa_bound`. `visible` are (variable, form) pairs that choose
    devices by their numbers, `all_numbers` what a process sees without them. `free_bytes` is what
    a device has left now, where it was read.
    """

    origin: str
    adapter: str
    capability: Capability
    devices: tuple[PlanDevice, ...]
    domains_why: str = ""
    refused: tuple[tuple[str, str], ...] = ()
    lost: tuple[LostFeature, ...] = ()
    numa_bound: bool = False
    numa_why: str = ""
    visible: tuple[tuple[str, str], ...] = ()
    all_numbers: tuple[str, ...] = ()
    container: tuple[BoxFlag, ...] = ()
    notes: tuple[str, ...] = ()
    free_bytes: int | None = None
    record: Any = None
    """The registry's record of the adapter, where it is installed: its hook is asked."""

    @property
    def cpu(self) -> bool:
        """Whether the device is the CPU itself."""
        return self.capability.identity.torch_type == "cpu"

    @property
    def domain_size(self) -> int:
        """Devices of the largest link domain: what a tensor-parallel group may span."""
        return max(map(len, self.domains().values()))

    def domains(self) -> dict[int, list[PlanDevice]]:
        """The devices by link domain."""
        found: dict[int, list[PlanDevice]] = {}
        for device in self.devices:
            found.setdefault(device.domain, []).append(device)
        return found

    def in_groups(self, size: int) -> list[PlanDevice]:
        """The devices in groups of a size, none of which leaves its domain; others are out."""
        return [
            device
            for domain in self.domains().values()
            for device in domain[: len(domain) // size * size]
        ]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "origin": self.origin,
            "adapter": self.adapter,
            "descriptor": self.capability.origin,
            "arch": self.capability.identity.arch,
            "name": self.capability.identity.name,
            "devices": [device.to_json() for device in self.devices],
            "domains": self.domains_why,
            "refused": [{"id": one, "reason": why} for one, why in self.refused],
            "notes": list(self.notes),
        }


def profile_box(
    capability: Capability, adapter: str, count: int, origin: str, record: Any = None
) -> PlanBox:
    """So many devices of a descriptor, without a machine around them."""
    name = capability.identity.name or capability.identity.arch
    devices = tuple(PlanDevice(f"{adapter}:{i}", name) for i in range(count))
    why = "one device" if count == 1 else "assumed: a profile tells of no links, one domain"
    return PlanBox(
        origin,
        adapter,
        capability,
        devices,
        why,
        numa_why="a profile tells of no NUMA nodes",
        record=record,
    )
