"""Which devices of an adapter are on a host, as its manifest and descriptors have it.

For this machine and for a pasted report alike, without torch. Whether they can be used here is
another question: `registry` asks for device nodes and drivers, and torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllm_adapter.capability import Capability
from vllm_adapter.descriptors import choose, live_values, load_all, narrowed
from vllm_adapter.host.facts import Accelerator, HostFacts, PciDevice
from vllm_adapter.host.match import match
from vllm_adapter.manifest import Manifest

_PCI: Final = ("pci_vendor", "pci_device", "pci_class")


@dataclass(frozen=True, slots=True)
class Recognised:
    """One device. `capability` is its descriptor with what is live, or None if none is for it.

    `evidence` says what it was recognised by.
    """

    name: str
    evidence: str
    bdf: str | None = None
    arch: str | None = None
    accelerator: Accelerator | None = None
    capability: Capability | None = None


def recognise(
    manifest: Manifest, host: HostFacts, described: Sequence[Capability] | None = None
) -> tuple[Recognised, ...]:
    """The devices of one adapter: those that a tool told of, or else the PCI functions.

    A tool's device belongs to the adapter whose name is its vendor, whatever face the tool has;
    one inside the CPU only if a descriptor is for it. `described` saves reading the descriptors
    again. Errors as `load_all`.
    """
    if described is None:
        described = load_all(manifest)
    told = [one for one in host.accelerators if one.vendor == manifest.name]
    if told:
        found = [_told(manifest, one, host, described) for one in told]
        return tuple(one for one in found if one is not None)
    return tuple(_on_pci(manifest, host, described))


def _told(
    manifest: Manifest, one: Accelerator, host: HostFacts, described: Sequence[Capability]
) -> Recognised | None:
    pci = next((function for function in host.pci if function.bdf == one.bdf), None)
    capability = choose(described, narrowed(host, pci, one), one.arch)
    if one.integrated and not (capability and capability.memory.unified):
        return None
    return Recognised(
        name=one.name or manifest.vendor,
        evidence=f"{one.source} names {one.name or f'device {one.index}'}",
        bdf=one.bdf,
        arch=one.arch or (capability.identity.arch if capability else None),
        accelerator=one,
        capability=capability
        and _live(capability, one.compute_units, one.memory_total_bytes, one.partition),
    )


def _live(
    capability: Capability, units: int | None, memory: int | None, partition: str | None
) -> Capability:
    live = live_values(capability, units=units, memory_bytes=memory)
    if partition and units is None:  # a part of the card, of which nobody said how large
        live["compute_units"] = {
            dtype: {"units": None, "throughput_gflops": None} for dtype in capability.compute_units
        }
        live.setdefault("memory", {})["bandwidth_gb_s"] = None
        live["memory"].setdefault("capacity_bytes", None)
    return capability.refined(live) if live else capability


def _on_pci(
    manifest: Manifest, host: HostFacts, described: Sequence[Capability]
) -> Iterator[Recognised]:
    entries = [{k: v for k, v in entry.items() if k in _PCI} for entry in manifest.match]
    seen = match([entry for entry in entries if entry], replace(host, nodes=(), modules=()))
    functions: tuple[PciDevice, ...] = seen.pci if seen else ()
    for function in functions:
        capability = choose(described, narrowed(replace(host, accelerators=()), function, None))
        yield Recognised(
            name=(capability and capability.identity.name) or manifest.vendor,
            evidence=str(function),
            bdf=function.bdf,
            arch=capability.identity.arch if capability else None,
            capability=capability,
        )
