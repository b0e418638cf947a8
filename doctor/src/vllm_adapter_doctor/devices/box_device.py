"""One schedulable device of a box, and the list of all, as `inventory` joins them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_adapter.hostfacts.facts import Accelerator, DeviceNode
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter_doctor.vendor_data.pci_products import PRODUCTS


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable device of a box. What nothing told of is None or empty.

    `index` is the number by which a program counts it when all of its vendor's devices are
    visible and in the order of their bus addresses; `physical` is the one in the driver's own
    numbering, where a tool told it. `visible` is whether torch sees it. `nodes` are its own
    device nodes, `node_number` the number in their names, as far as the vendor's rule tells it.
    `evidence` are sentences on how it is known.
    """

    vendor: str
    index: int
    name: str | None = None
    arch: str | None = None
    bdf: str | None = None
    pci_id: str | None = None
    uuid: str | None = None
    physical: int | None = None
    card: int | None = None
    die: int | None = None
    partition: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    integrated: bool | None = None
    unified_memory: bool | None = None
    numa_node: int | None = None
    driver: str | None = None
    nodes: tuple[DeviceNode, ...] = ()
    node_number: int | None = None
    visible: bool | None = None
    reported: Accelerator | None = None
    evidence: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Its name here, such as "cuda:0": the adapter's name and `index`."""
        return f"{self.vendor}:{self.index}"

    @property
    def vendor_name(self) -> str:
        """The vendor's own name."""
        return VENDORS[self.vendor].name if self.vendor in VENDORS else self.vendor

    @property
    def title(self) -> str:
        """The product's name, or the best there is."""
        return self.name or PRODUCTS.get(self.pci_id or "") or f"{self.vendor_name} device"

    @property
    def source(self) -> str:
        """Who told of it first: a tool, or the bus."""
        return self.reported.source if self.reported else "PCI"

    @property
    def system_memory(self) -> bool:
        """Whether its memory is the CPU's own, so that it must not be counted twice."""
        return bool(self.integrated or self.unified_memory)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        health = self.reported.health if self.reported else None
        return {
            "id": self.id,
            "vendor": self.vendor_name,
            "adapter": self.vendor,
            "name": self.title,
            "arch": self.arch,
            "bdf": self.bdf,
            "pci_id": self.pci_id,
            "uuid": self.uuid,
            "physical": self.physical,
            "die": self.die,
            "partition": self.partition,
            "memory_total_bytes": self.memory_total_bytes,
            "memory_used_bytes": self.memory_used_bytes,
            "system_memory": self.system_memory,
            "integrated": self.integrated,
            "numa_node": self.numa_node,
            "nodes": [node.path for node in self.nodes],
            "status": health.status if health else None,
            "visible": self.visible,
            "evidence": list(self.evidence),
        }


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices by vendor and index, and sentences about what could not be told."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()

    def of(self, vendor: str) -> tuple[Device, ...]:
        """The devices of one adapter's name."""
        return tuple(device for device in self.devices if device.vendor == vendor)
