"""Which devices of an adapter are on a host, as its manifest and descriptors have it.

For this machine and for a pasted report alike, without torch. Whether they can be used here is
another question: `registry` asks for device nodes and drivers, and torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.manifest import Manifest
from vllm_adapter.discovery.descriptors import choose, live_values, load_all, narrowed
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, PciDevice
from vllm_adapter.hostfacts.match import match
from vllm_adapter_doctor.devices.box_device import Device, Inventory
from vllm_adapter_doctor.devices.inventory import inventory

_PCI: Final = ("pci_vendor", "pci_device", "pci_class")


@dataclass(frozen=True, slots=True)
class RecognisedDevice:
    """One device, and its descriptor with what is live; None if no descriptor is for it."""

    device: Device
    arch: str | None = None
    capability: Capability | None = None


def recognise(
    manifest: Manifest,
    host: HostFacts,
    described: Sequence[Capability] | None = None,
    box: Inventory | None = None,
) -> tuple[RecognisedDevice, ...]:
    """The devices of one adapter, in the order of the box's list.

    A device belongs to the adapter of who made the silicon, whatever face its tool has; its PCI
    function, where one is known, is one that the manifest asks for, and a device node alone is no
    device where the bus shows none; one inside the CPU counts only if a descriptor is for it.
    `described` and `box` save reading and joining them again. Errors as `load_all`.
    """
    if described is None:
        described = load_all(manifest)
    found = []
    for device in (box or inventory(host)).of(manifest.name):
        function = next((one for one in host.pci if one.bdf == device.bdf), None)
        if not _asked_for(
            manifest, function, reported=device.reported is not None or not host.pci
        ):
            continue
        seen = Accelerator(
            manifest.name, device.index, "inventory", name=device.name, arch=device.arch
        )
        capability = choose(described, narrowed(host, function, seen), device.arch)
        if device.integrated and not (capability and capability.memory.unified):
            continue
        arch = device.arch or (capability.identity.arch if capability else None)
        found.append(RecognisedDevice(device, arch, capability and _live(capability, device)))
    return tuple(found)


def _asked_for(manifest: Manifest, function: PciDevice | None, *, reported: bool) -> bool:
    """Whether the PCI part of any entry holds, or a tool told; no PCI part asks for nothing."""
    entries = [{k: v for k, v in entry.items() if k in _PCI} for entry in manifest.match]
    if not all(entries):
        return True
    if function is None:
        return reported
    return match(entries, HostFacts(pci=(function,))) is not None


def _live(capability: Capability, device: Device) -> Capability:
    units = device.reported.compute_units if device.reported else None
    live: dict[str, Any] = live_values(
        capability, units=units, memory_bytes=device.memory_total_bytes
    )
    if device.partition and units is None:  # a part of the card, and nobody said how large
        live["compute_units"] = {
            dtype: {"units": None, "throughput_gflops": None} for dtype in capability.compute_units
        }
        memory = live.setdefault("memory", {"capacity_bytes": None})
        memory["bandwidth_gb_s"] = None
    return capability.refined(live) if live else capability
