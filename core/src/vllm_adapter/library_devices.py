"""A C library as an adapter's device: which file it is, and what it says of each device."""

from __future__ import annotations

from pathlib import Path

from vllm_adapter.clib.library import Library
from vllm_adapter.host.facts import Accelerator
from vllm_adapter.manifest import Manifest
from vllm_adapter.settings import Settings


def library_file(manifest: Manifest, settings: Settings) -> Path | None:
    """The C library that is the adapter's device; None if its device is not one.

    VA_LIBRARY replaces the manifest's.
    """
    own = manifest.library_file()
    return own if own is None or settings.library is None else settings.library


def library_devices(vendor: str, library: Library) -> list[Accelerator]:
    """One accelerator for each device of a library. `vendor` is the adapter's name.

    Raises:
        DeviceError: the library cannot tell.
    """
    found = []
    for index in range(library.device_count()):
        info = library.device_info(index)
        found.append(
            Accelerator(
                vendor=vendor,
                index=index,
                source="library",
                name=info.name or None,
                arch=info.arch or None,
                memory_total_bytes=info.total_bytes or None,
                compute_units=info.units or None,
            )
        )
    return found
