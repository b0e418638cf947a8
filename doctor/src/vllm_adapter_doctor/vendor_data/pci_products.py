"""Product names of PCI ids, for boxes where only the bus reports a device.

Only what a reader of a table needs. An id that is not here has no name, which is no fault. Sources
are in the vendors' files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.vendor_files import LazyMapping, once, sections


def _read() -> dict[str, str]:
    return {
        f"{VENDORS[name].pci}:{device}": product
        for name, products in sections("pci", "products")
        for device, product in products.items()
    }


PRODUCTS: Final[Mapping[str, str]] = LazyMapping(_read)
"""By "vendor:device", as in `PciDevice`."""


@once
def two_stacks() -> frozenset[str]:
    """Cards of two stacks, where the ids prove it; under FLAT each is a device of its own."""
    return frozenset(
        f"{VENDORS[name].pci}:{device}"
        for name, devices in sections("pci", "two_stacks")
        for device in devices
    )
