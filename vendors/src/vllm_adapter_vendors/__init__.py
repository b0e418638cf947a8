"""Data of vllm-adapter: one JSON file a vendor of accelerators, one TOML file a kind of finding.

Needs the standard library alone. What the files mean is decided by those who read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Final

__all__ = ["finding_files", "vendor_files"]

_HERE: Final = "vllm_adapter_vendors"


def vendor_files() -> Iterator[tuple[str, bytes]]:
    """Each vendor's name and the content of its JSON file, by name."""
    yield from _files("vendors", ".json")


def finding_files() -> Iterator[tuple[str, bytes]]:
    """Each kind of finding and the content of its TOML file, by name."""
    yield from _files("findings", ".toml")


def _files(folder: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    entries = resources.files(_HERE).joinpath(folder).iterdir()
    for entry in sorted(entries, key=lambda one: one.name):
        if entry.name.endswith(suffix):
            yield entry.name.removesuffix(suffix), entry.read_bytes()
