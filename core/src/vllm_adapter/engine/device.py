"""Opening one device of one adapter: descriptor, runtime, operators, ready for use."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from vllm_adapter.contract.capability import Capability
from vllm_adapter.discovery.adapter import Adapter
from vllm_adapter.discovery.kernels_only import additional_providers, provider_of
from vllm_adapter.discovery.library_devices import library_file
from vllm_adapter.discovery.probe.library import open_library
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord
from vllm_adapter.discovery.registry import find
from vllm_adapter.discovery.tuning_files import tables_of
from vllm_adapter.engine.ops.c_library import serve
from vllm_adapter.engine.ops.library import refuse_foreign
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.engine.ops.tuning import TUNING
from vllm_adapter.engine.registries import on_reset
from vllm_adapter.engine.runtime import FrameworkRuntime, RuntimeAdapter
from vllm_adapter.engine.runtime.c_library import CLibraryRuntime
from vllm_adapter.engine.runtime.device_from_clib import enable
from vllm_adapter.errors import AdapterError, DeviceRefused, LibraryError, NoSuchDevice
from vllm_adapter.settings import Settings

_log = logging.getLogger("vllm_adapter.ops")
_said: Final[set[str]] = set()
on_reset(_said.clear)


@dataclass(frozen=True)
class OpenDevice:
    """A device in use: operators bound on `device` may now be served by its adapter."""

    adapter: Adapter
    record: DeviceRecord
    capability: Capability
    runtime: RuntimeAdapter
    device: torch.device

    def own(self, settings: Settings) -> Settings:
        """The settings to bind a model with: this adapter's implementations run it.

        Others that own the same torch device are not asked, whatever was opened when.
        """
        return replace(settings, adapter=self.adapter.record.name)


def open_device(name: str, index: int = 0, settings: Settings | None = None) -> OpenDevice:
    """Probes an installed adapter, opens its device `index` and puts its operators in use.

    Raises:
        AdapterError: not installed, broken, absent, its runtime cannot be opened, or somebody
            registered kernels for our operators past us.
        LibraryError: its C library, or that of VA_LIBRARY, cannot be used.
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
    # Not a torch.device yet: torch learns the name of a C library's device when that is opened.
    _check_settings(settings, found.torch.partition(":")[0])
    capability = adapter.capability(found, settings)
    runtime = _open_runtime(adapter, found, capability, settings)
    own = provider_of(adapter, capability)
    others = additional_providers(capability, found.torch.partition(":")[0], settings)
    for sentence in others.faults:
        _warn_once(sentence)
    PROVIDERS.add(own, found.torch)
    for provider in others.providers:
        # Another adapter of this device may have another descriptor of theirs, or none.
        PROVIDERS.add(replace(provider, beside=record.name), found.torch)
    refuse_foreign()
    device = torch.device(found.torch)
    tables = tables_of(record, capability)
    TUNING.use(device, capability.identity.arch, live_units(device, capability), tables)
    return OpenDevice(adapter, found, capability, runtime, device)


def live_units(device: torch.device, capability: Capability) -> int | None:
    """Compute units of the live device, which may be a part of a card; None where unknown.

    Of a CPU they are the threads that this process may use.
    """
    module: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(module, "get_device_properties"):
        properties = module.get_device_properties(device)
        for name in ("multi_processor_count", "max_compute_units", "gpu_subslice_count"):
            if hasattr(properties, name):
                return int(getattr(properties, name))
    units = capability.compute_units.values()
    known = [unit.max_threads if device.type == "cpu" else unit.units for unit in units]
    return next((count for count in known if count is not None), None)


def _warn_once(sentence: str) -> None:
    if sentence not in _said:
        _said.add(sentence)
        _log.warning("%s", sentence)


def _check_settings(settings: Settings, torch_type: str) -> None:
    """Refuses what the settings forbid, or ask for in vain."""
    if settings.require_device and settings.require_device != torch_type:
        raise DeviceRefused(
            f"VA_REQUIRE_DEVICE asks for {settings.require_device}, and this device is "
            f"{torch_type}",
            hint="name an adapter of that device, or unset VA_REQUIRE_DEVICE",
        )


def _open_runtime(
    adapter: Adapter, device: DeviceRecord, capability: Capability, settings: Settings
) -> RuntimeAdapter:
    manifest = adapter.record.manifest
    if manifest is None or manifest.device is None:
        raise AdapterError(
            f"adapter {adapter.record.name} brings kernels only, and no device of its own",
            hint="name the adapter that owns the device: this one serves it beside that one",
        )
    section, library = manifest.device, library_file(manifest, settings)
    if library is None and settings.library is not None:
        raise LibraryError(
            f"VA_LIBRARY names {settings.library}, and the adapter {adapter.record.name} has no C "
            "library that it could replace",
            hint="unset VA_LIBRARY, or name an adapter whose manifest has device.library",
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
    if library is not None:
        return _open_library(adapter, library, section.torch_type, settings)
    return FrameworkRuntime(section.torch_type)


def _open_library(
    adapter: Adapter, file: Path, torch_type: str, settings: Settings
) -> RuntimeAdapter:
    """A C library's devices as torch's, its operators, and a runtime that shares their streams."""
    library = open_library(file)
    backend = enable(torch_type, library, settings)
    serve(adapter.record.name, library, backend.streams)
    return CLibraryRuntime(library, torch_type, backend.streams)
