"""Whose silicon is behind a torch: by names, by builds and by packages, never by the word CUDA."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.vendor_files import LazyMapping, once, sections
from vllm_adapter_doctor.report.parsers._makers import maker, patterns

_PAIRS: Final[Mapping[str, Mapping[str, str]]] = LazyMapping(
    lambda: dict(sections("torch", "capabilities"))
)
"""What torch prints as a compute capability: the code that it means, where that is known."""
_GENERIC: Final = re.compile(r"^(?:AMD Radeon Graphics|Graphics Device|Device)$", re.IGNORECASE)


@once
def _signs() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return patterns("words", "software")


@once
def _plugins() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return patterns("words", "plugin")


def is_plugin_device(text: str) -> bool:
    """Whether a device is reported that torch reaches otherwise than by `torch.cuda`.

    `torch.cuda` then says False, which is no fault.
    """
    return any(pattern.search(text) for _, pattern in _plugins())


def underlying_vendor(text: str) -> str | None:
    """The vendor whose software stands behind CUDA's or ROCm's face in this text."""
    return next((vendor for vendor, sign in _signs() if sign.search(text)), None)


def vendor_of(name: str, software: str | None, face: str | None) -> str | None:
    """Who made a device of this name.

    `software` is the text's `underlying_vendor`; `face` is what the tool takes devices for.
    None where nothing tells.
    """
    if _GENERIC.match(name) and software:
        return software
    return maker(name, "") or software or face


def arch_of(vendor: str, capability: str) -> str | None:
    """The device code of a compute capability as torch prints it.

    AMD's pair is (9, 4) for gfx942 and (9, 5) for gfx950; others of AMD share a pair. Other makers
    print a pair that is theirs, or an imitation.
    """
    if not re.fullmatch(r"\d{1,2}\.\d", capability):
        return None
    row = VENDORS.get(vendor)
    if row and row.code == "sm":
        return "sm_" + capability.replace(".", "")
    return dict(_PAIRS.get(vendor, {})).get(capability)
