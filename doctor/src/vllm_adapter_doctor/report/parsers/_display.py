"""Graphics devices as lists of hardware name them: whose they are, and whether in a processor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.vendor_files import LazyMapping, once, sections
from vllm_adapter_doctor.report.parsers._makers import patterns


@once
def _makers() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return patterns("words", "bus")


def _needs(key: str) -> dict[str, re.Pattern[str] | None]:
    """What a vendor's line must also say in one class of devices; None: it is never meant."""
    return {
        vendor: re.compile(needs) if needs else None for vendor, needs in sections("words", key)
    }


_DISPLAYS: Final[Mapping[str, re.Pattern[str] | None]] = LazyMapping(lambda: _needs("as_display"))
_ACCELERATORS: Final[Mapping[str, re.Pattern[str] | None]] = LazyMapping(
    lambda: _needs("as_accelerator")
)
_CARDS: Final[Mapping[str, tuple[re.Pattern[str], re.Pattern[str], str | None]]] = LazyMapping(
    lambda: {
        vendor: (re.compile(raw["card"]), re.compile(raw["part"]), raw.get("slot"))
        for vendor, raw in sections("integrated")
        if "card" in raw
    }
)
"""Names of cards, names of parts of processors, and the slot of such a part."""


def maker_of_text(text: str, kind: str) -> tuple[str, str] | None:
    """(adapter, PCI vendor id) of a display or accelerator device by its line's words.

    `kind` is the class in words. Huawei's and Intel's other accelerators (compression, FPGA) are
    none of ours, nor are displays of clouds that make accelerators.
    """
    needs = _ACCELERATORS if "accelerator" in kind.lower() else _DISPLAYS
    for adapter, pattern in _makers():
        if pattern.search(text):
            needed = needs.get(adapter, pattern)
            found = needed is not None and needed.search(text)
            return (adapter, VENDORS[adapter].pci or "") if found else None
    return None


def in_processor(adapter: str, name: str, bdf: str | None) -> bool | None:
    """Whether a graphics device is part of the processor; None where nothing reports it."""
    if adapter not in _CARDS:
        return False
    card, part, slot = _CARDS[adapter]
    if card.search(name):
        return False
    if part.search(name) or (slot and bdf == slot):
        return True
    bus = VENDORS[adapter].integrated.bus
    return False if bus and bdf and bdf.split(":")[1] != bus else None
