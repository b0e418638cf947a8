"""A C library as an adapter's device: which file it is, and what it says of each device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_adapter.c_abi.library import LibraryDevice
from vllm_adapter.contract.manifest import Manifest
from vllm_adapter.hostfacts.facts import Accelerator
from vllm_adapter.settings import Settings


def library_file(manifest: Manifest, settings: Settings) -> Path | None:
    """The C library that is the adapter's device; None if its device is not one.

    VA_LIBRARY replaces the manifest's.
    """
    own = manifest.library_file()
    return own if own is None or settings.library is None else settings.library


def library_devices(vendor: str, devices: Sequence[LibraryDevice]) -> list[Accelerator]:
    """One accelerator for each device that a library reports. `vendor` is the adapter's name."""
    return [
        Accelerator(
            vendor=vendor,
            index=index,
            source="library",
            name=device.name or None,
            arch=device.arch or None,
            memory_total_bytes=device.total_bytes or None,
            compute_units=device.units or None,
        )
        for index, device in enumerate(devices)
    ]
