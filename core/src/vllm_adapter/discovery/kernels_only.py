"""Kernels-only adapters: which of them serve a device beside the adapter that owns it."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.manifest import Manifest
from vllm_adapter.contract.marks import entries_of
from vllm_adapter.contract.resolve import Provider
from vllm_adapter.discovery.adapter import Adapter
from vllm_adapter.discovery.descriptors import choose, load_all
from vllm_adapter.discovery.records import AdapterRecord, Status
from vllm_adapter.discovery.registry import host_for, located, probe, scan, with_cached_probes
from vllm_adapter.errors import VllmAdapterError
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts
from vllm_adapter.settings import Settings


@dataclass(frozen=True, slots=True)
class AdditionalProviders:
    """Who serves a device beside its own adapter, and a sentence for each that cannot."""

    providers: tuple[Provider, ...]
    faults: tuple[str, ...] = ()


def additional_providers(
    own: Capability, torch_type: str, settings: Settings
) -> AdditionalProviders:
    """The installed kernels-only adapters that are `ok` here and have a descriptor for a device.

    `own` is the descriptor of the device's own adapter. One that cannot be used is left out with
    a sentence: it takes nothing down.
    """
    providers, faults = [], []
    for record in kernels_only(settings):
        assert record.manifest is not None
        try:
            capability = descriptor_for(record.manifest, own, torch_type)
            if capability is None:
                continue
            if record.status is not Status.OK:
                faults.append(
                    f"the kernels-only adapter {record.name} is not used, it is "
                    f"{record.status_text}: {record.reason}; run `{record.next_step}`"
                )
                continue
            providers.append(provider_of(Adapter(record), capability))
        except VllmAdapterError as error:
            faults.append(f"the kernels-only adapter {record.name} is not used: {error.message}")
    return AdditionalProviders(tuple(providers), tuple(faults))


def provider_of(adapter: Adapter, capability: Capability) -> Provider:
    """An adapter as `contract.resolve` asks it: its descriptor, and what its plug-in gives.

    Raises:
        AdapterError: its plug-in's `implementations` cannot be asked.
    """
    record = adapter.record
    extra = entries_of(record.name, adapter.call("implementations") or ())
    only = record.manifest is not None and record.manifest.device is None
    return Provider.of(record.name, capability, kernels_only=only, extra=extra)


def kernels_only(settings: Settings) -> tuple[AdapterRecord, ...]:
    """The kernels-only adapters that match this machine: `ok`, broken or incompatible.

    Answers of earlier probes are used.
    """
    shown = (None, Status.INCOMPATIBLE)
    records = [
        r
        for r in scan(settings)
        if r.manifest is not None and r.manifest.device is None and r.status in shown
    ]
    if not records:
        return ()
    host = host_for(records)
    known = with_cached_probes(located(records, host), host)
    reported = (Status.OK, Status.BROKEN, Status.INCOMPATIBLE)
    return tuple(r for r in probe(known, host) if r.status in reported)


def descriptor_for(manifest: Manifest, own: Capability, torch_type: str) -> Capability | None:
    """A kernels-only adapter's descriptor for a device; None if it has none.

    One for another torch device type is not for it. Conditions on the device (`match`) are held
    against its arch and name; one without conditions is for its own arch alone.

    Raises:
        CapabilityError: a descriptor that cannot be read.
        ManifestError: a `match` that cannot be read.
    """
    arch = own.identity.arch
    fitting = [
        one
        for one in load_all(manifest)
        if one.identity.torch_type in (None, torch_type)
        and (one.match or one.identity.arch == arch)
    ]
    return choose(fitting, _as_host(own), arch)


def _as_host(own: Capability) -> HostFacts:
    """Facts of nothing but the device that a descriptor is of."""
    name, arch = own.identity.name, own.identity.arch
    device = Accelerator(own.identity.vendor, 0, own.origin, name, arch=arch)
    return HostFacts(accelerators=(device,))
