"""Opening one device of one adapter: descriptor, runtime, operators, ready for use."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch

from vllm_adapter.adapter import Adapter
from vllm_adapter.capability import Capability
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.engine.runtime import FrameworkRuntime, RuntimeAdapter
from vllm_adapter.errors import AdapterError, DeviceRefused, NoSuchDevice
from vllm_adapter.records import AdapterRecord, DeviceRecord
from vllm_adapter.registry import find
from vllm_adapter.settings import Settings


@dataclass(frozen=True)
class OpenDevice:
    """A device in use: operators bound on `device` may now be served by its adapter."""

    adapter: Adapter
    record: DeviceRecord
    capability: Capability
    runtime: RuntimeAdapter
    device: torch.device


def open_device(name: str, index: int = 0, settings: Settings | None = None) -> OpenDevice:
    """Probes an installed adapter, opens its device `index` and puts its operators in use.

    Raises:
        AdapterError: not installed, broken, absent, or its runtime cannot be opened.
        NoSuchDevice: it has no device of that index.
        CapabilityError: its descriptor cannot be used.
    """
    settings = settings or Settings.from_environ()
    return open_record(find(name, settings), index, settings)


def open_record(record: AdapterRecord, index: int, settings: Settings) -> OpenDevice:
    """As `open_device`, for a record that was probed already."""
    adapter = Adapter(record)
    found = next((d for d in record.devices if d.index == index), None)
    if found is None:
        raise NoSuchDevice(
            f"adapter {record.name} has no device {index}; it has {len(record.devices)}",
            hint="`vllm-adapter list --probe` shows the devices of each adapter",
        )
    _heed(settings, torch.device(found.torch).type)
    capability = adapter.capability(found, settings)
    runtime = _open_runtime(adapter, found, capability)
    PROVIDERS.use(
        record.name,
        capability,
        found.torch,
        extra=adapter.call("implementations") or (),
    )
    return OpenDevice(adapter, found, capability, runtime, torch.device(found.torch))


def _heed(settings: Settings, torch_type: str) -> None:
    """Refuses what the settings forbid, or ask for in vain."""
    if settings.require_device and settings.require_device != torch_type:
        raise DeviceRefused(
            f"VA_REQUIRE_DEVICE asks for {settings.require_device}, and this device is "
            f"{torch_type}",
            hint="name an adapter of that device, or unset VA_REQUIRE_DEVICE",
        )
    if settings.library is not None:
        raise AdapterError(
            f"VA_LIBRARY names {settings.library}, and this release opens no C library",
            hint="unset VA_LIBRARY; `vllm-adapter list --probe` shows what can be opened",
        )


def _open_runtime(
    adapter: Adapter, device: DeviceRecord, capability: Capability
) -> RuntimeAdapter:
    manifest = adapter.record.manifest
    section = manifest.device if manifest else None
    if section is None:
        raise AdapterError(
            f"adapter {adapter.record.name} brings kernels only, and no device of its own",
            hint="name the adapter that owns the device; this one serves it when installed",
        )
    if section.torch_module:
        importlib.import_module(section.torch_module)
    given = adapter.call("open_runtime", device=device.torch, capability=capability)
    if given is not None:
        if not isinstance(given, RuntimeAdapter):
            raise AdapterError(
                f"adapter {adapter.record.name}: its hook `open_runtime` gave {type(given)!r}",
                hint="return an instance of vllm_adapter.engine.runtime.RuntimeAdapter",
            )
        return given
    if section.torch_type is None:
        raise AdapterError(
            f"adapter {adapter.record.name} names the C library {section.library}; this release "
            "opens torch devices only",
            hint="give a RuntimeAdapter in the hook `open_runtime`",
        )
    return FrameworkRuntime(section.torch_type)
