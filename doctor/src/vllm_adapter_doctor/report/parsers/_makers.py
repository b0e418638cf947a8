"""Who made a device, by the name that a tool prints for it.

A tool's face says little: CUDA, ROCm and `nvidia-smi` exist with other makers' chips behind them.
The words are in the vendors' files; those of high rank are asked first, since it is the first
ranks' faces that others wear.
"""

from __future__ import annotations

import re

from vllm_adapter.hostfacts.vendor_files import once, sections


def patterns(*path: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(vendor, pattern) of every vendor that has one at this path, the widely imitated last."""
    found = [(vendor, re.compile(text)) for vendor, text in sections(*path)]
    return tuple(reversed(found))


@once
def _names() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return patterns("words", "device")


def maker(name: str | None, default: str) -> str:
    """The adapter's name of who made a device; `default` where the name does not say."""
    for vendor, pattern in _names() if name else ():
        if pattern.search(name or ""):
            return vendor
    return default
