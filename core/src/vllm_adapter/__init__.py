"""Hardware adapters for large language models: the public names, each loaded on its first use.

What adapters and frameworks may import is here, as `from vllm_adapter import NAME`; every other
module is core's own, and may change in any release. Importing this imports nothing heavy: torch
comes with the first name that needs it.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # what type checkers take for True; typing itself would cost 10 ms
if TYPE_CHECKING:
    from vllm_adapter.contract.capability import Capability
    from vllm_adapter.contract.decision import Accept, Reject
    from vllm_adapter.contract.finding import Evidence, Finding, Severity
    from vllm_adapter.contract.hookspecs import AdapterSpec, hookimpl
    from vllm_adapter.engine.device import OpenDevice, open_device
    from vllm_adapter.engine.integrations.attention import PortableAttention
    from vllm_adapter.engine.integrations.transformers.adapt import Adapted, adapt, unadapt
    from vllm_adapter.engine.kv_cache.blocks import BlockSize, BlockTable
    from vllm_adapter.engine.kv_cache.cache import PagedKVCache
    from vllm_adapter.engine.ops import generic
    from vllm_adapter.engine.ops.implementation import implementation
    from vllm_adapter.engine.ops.step import Step, make_step
    from vllm_adapter.engine.ops.tuning import TuneCase, tuned
    from vllm_adapter.engine.runner.generator import Generator, Request
    from vllm_adapter.engine.runner.sampling import SamplingParams
    from vllm_adapter.engine.runtime.base import (
        Allocation,
        MemoryCapacity,
        MemoryStats,
        RuntimeAdapter,
        Stream,
    )
    from vllm_adapter.engine.runtime.framework import FrameworkRuntime
    from vllm_adapter.errors import (
        AdapterError,
        AllocationFreed,
        CapabilityError,
        CertificateError,
        DeviceError,
        DeviceLost,
        DeviceRefused,
        DeviceUnhealthy,
        ForkedDevice,
        InputError,
        LaunchFailed,
        LibraryError,
        ManifestError,
        NewerFormat,
        NoSuchDevice,
        OutOfBounds,
        OutOfMemory,
        SettingError,
        UnsupportedCase,
        UnsupportedModel,
        VllmAdapterError,
    )
    from vllm_adapter.hostfacts.facts import HostFacts
    from vllm_adapter.settings import AdapterFilter, Fallback, Settings

__version__ = "0.1.0"

__all__ = [
    "Accept",
    "Adapted",
    "AdapterError",
    "AdapterFilter",
    "AdapterSpec",
    "Allocation",
    "AllocationFreed",
    "BlockSize",
    "BlockTable",
    "Capability",
    "CapabilityError",
    "CertificateError",
    "DeviceError",
    "DeviceLost",
    "DeviceRefused",
    "DeviceUnhealthy",
    "Evidence",
    "Fallback",
    "Finding",
    "ForkedDevice",
    "FrameworkRuntime",
    "Generator",
    "HostFacts",
    "InputError",
    "LaunchFailed",
    "LibraryError",
    "ManifestError",
    "MemoryCapacity",
    "MemoryStats",
    "NewerFormat",
    "NoSuchDevice",
    "OpenDevice",
    "OutOfBounds",
    "OutOfMemory",
    "PagedKVCache",
    "PortableAttention",
    "Reject",
    "Request",
    "RuntimeAdapter",
    "SamplingParams",
    "SettingError",
    "Settings",
    "Severity",
    "Step",
    "Stream",
    "TuneCase",
    "UnsupportedCase",
    "UnsupportedModel",
    "VllmAdapterError",
    "adapt",
    "generic",
    "hookimpl",
    "implementation",
    "make_step",
    "open_device",
    "tuned",
    "unadapt",
]

_HOMES = {
    "contract.capability": ("Capability",),
    "contract.decision": ("Accept", "Reject"),
    "contract.finding": ("Evidence", "Finding", "Severity"),
    "contract.hookspecs": ("AdapterSpec", "hookimpl"),
    "engine.device": ("OpenDevice", "open_device"),
    "engine.integrations.attention": ("PortableAttention",),
    "engine.integrations.transformers.adapt": ("Adapted", "adapt", "unadapt"),
    "engine.kv_cache.blocks": ("BlockSize", "BlockTable"),
    "engine.kv_cache.cache": ("PagedKVCache",),
    "engine.ops": ("generic",),
    "engine.ops.implementation": ("implementation",),
    "engine.ops.step": ("Step", "make_step"),
    "engine.ops.tuning": ("TuneCase", "tuned"),
    "engine.runner.generator": ("Generator", "Request"),
    "engine.runner.sampling": ("SamplingParams",),
    "engine.runtime.base": (
        "Allocation",
        "MemoryCapacity",
        "MemoryStats",
        "RuntimeAdapter",
        "Stream",
    ),
    "engine.runtime.framework": ("FrameworkRuntime",),
    "errors": (
        "AdapterError",
        "AllocationFreed",
        "CapabilityError",
        "CertificateError",
        "DeviceError",
        "DeviceLost",
        "DeviceRefused",
        "DeviceUnhealthy",
        "ForkedDevice",
        "InputError",
        "LaunchFailed",
        "LibraryError",
        "ManifestError",
        "NewerFormat",
        "NoSuchDevice",
        "OutOfBounds",
        "OutOfMemory",
        "SettingError",
        "UnsupportedCase",
        "UnsupportedModel",
        "VllmAdapterError",
    ),
    "hostfacts.facts": ("HostFacts",),
    "settings": ("AdapterFilter", "Fallback", "Settings"),
}
"""The modules that define the public names, below this package."""

if not TYPE_CHECKING:  # a type checker would take it for a promise of every name

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names:
                found = getattr(importlib.import_module(f"{__name__}.{home}"), name, None)
                if found is None:  # a module, such as `generic`
                    found = importlib.import_module(f"{__name__}.{home}.{name}")
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
