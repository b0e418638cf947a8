"""Data of vllm-adapter: one JSON file a vendor of accelerators, one TOML file a kind of finding.

Needs the standard library alone. What the files mean is decided by those who read them; the schema
of a vendor's file is `vendor` of vllm-adapter-schemas.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

__all__ = ["finding_files", "vendor_files"]

# importlib.resources would double what reading these files costs `vllm-adapter list`
_HERE: Final = os.path.dirname(os.path.abspath(__file__))


def vendor_files() -> Iterator[tuple[str, bytes]]:
    """Each vendor's name and the content of its JSON file, by name."""
    yield from _files("vendors", ".json")


def finding_files() -> Iterator[tuple[str, bytes]]:
    """Each kind of finding and the content of its TOML file, by name."""
    yield from _files("findings", ".toml")


def _files(folder: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    place = os.path.join(_HERE, folder)
    for name in sorted(os.listdir(place)):
        if name.endswith(suffix):
            with open(os.path.join(place, name), "rb") as file:
                yield name.removesuffix(suffix), file.read()
