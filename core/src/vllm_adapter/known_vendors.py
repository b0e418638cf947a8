"""PCI vendors whose accelerators we know, and the name that an adapter for them has.

Only for the sentence "this device is here, but no adapter for it is installed". Vendor ids are
those of pci.ids (2026-08-22); classes are the first four digits of a PCI class code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm_adapter.host.facts import PciDevice

_DISPLAY: Final = ("0x0300", "0x0302", "0x0380")
_ACCELERATOR: Final = "0x1200"
_EITHER: Final = (*_DISPLAY, _ACCELERATOR)

KNOWN: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "10de": ("cuda", "NVIDIA", ("0x0300", "0x0302")),
    "1002": ("rocm", "AMD", _EITHER),
    "8086": ("xpu", "Intel", _DISPLAY),
    "19e5": ("ascend", "Huawei Ascend", (_ACCELERATOR,)),
    "1da3": ("gaudi", "Intel Gaudi", (_ACCELERATOR,)),
    "1ed5": ("musa", "Moore Threads", _EITHER),
    "9999": ("metax", "MetaX", _EITHER),
    "cabc": ("cambricon", "Cambricon", _EITHER),
    "1e3e": ("iluvatar", "Iluvatar", _EITHER),
    "1e36": ("enflame", "Enflame", _EITHER),
    "1d22": ("kunlunxin", "Kunlunxin", _EITHER),
    "1eff": ("rebellions", "Rebellions", _EITHER),
    "1e52": ("tenstorrent", "Tenstorrent", _EITHER),
}
"""PCI vendor id: the adapter's name, the vendor's, and the classes of its accelerators."""


def adapters_for(devices: Iterable[PciDevice]) -> dict[str, tuple[str, PciDevice]]:
    """For each adapter name that the hardware calls for: the vendor, and one such device."""
    found: dict[str, tuple[str, PciDevice]] = {}
    for device in devices:
        entry = KNOWN.get(device.vendor)
        integrated = device.vendor == "8086" and device.bdf.split(":")[1] == "00"
        if entry is not None and device.class_code[:6] in entry[2] and not integrated:
            found.setdefault(entry[0], (entry[1], device))
    return found
