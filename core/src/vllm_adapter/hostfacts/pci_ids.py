"""Device codes of PCI ids, for texts and boxes where only the bus reports a device.

An Ascend id names a family of bins, and a Gaudi id no revision, so those have no code. Sources are
in the vendors' files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.vendor_files import LazyMapping, sections


def _read() -> dict[str, str]:
    return {
        f"{VENDORS[name].pci}:{device}": arch
        for name, archs in sections("pci", "archs")
        for arch, devices in archs.items()
        for device in devices
    }


ARCHS: Final[Mapping[str, str]] = LazyMapping(_read)
"""By "vendor:device", as in `PciDevice`."""
