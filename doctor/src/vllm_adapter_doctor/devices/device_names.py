"""Codes of devices, by product name where no tool told them, and what a code lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from vllm_adapter.hostfacts.vendor_files import LazyMapping, sections
from vllm_adapter_doctor.vendor_data.driver_tables import capability_number


class NamedDevice(Protocol):
    """A device as far as its code can be known from it."""

    @property
    def vendor(self) -> str:
        """The adapter's name."""

    @property
    def name(self) -> str | None:
        """The product's name."""

    @property
    def arch(self) -> str | None:
        """The code that a tool told."""


_PRODUCTS: Final[Mapping[str, Sequence[tuple[str, int]]]] = LazyMapping(
    lambda: dict(sections("torch", "code", "names"))
)
"""Of each vendor whose tools may name the product alone."""
_NO_BFLOAT16: Final[Mapping[str, Mapping[str, Any]]] = LazyMapping(
    lambda: dict(sections("torch", "no_bfloat16"))
)


def capability(device: NamedDevice) -> str | None:
    """ "8.6" and the like: as a tool told it, else by the product's name; None where unknown."""
    products = _PRODUCTS.get(device.vendor)
    if products is None:
        return None
    number, name = capability_number(device.arch or ""), device.name or ""
    if number is None:
        number = next((code for names, code in products if re.search(names, name)), None)
    return None if number is None else f"{number // 10}.{number % 10}"


def arch(device: NamedDevice) -> str | None:
    """ "sm_86" or "gfx90a": the device's code, where it is known."""
    number = capability(device)
    return f"sm_{number.replace('.', '')}" if number else device.arch


def has_no_bfloat16(device: NamedDevice) -> bool:
    """Whether its vendor's file says that its code computes float16 and no bfloat16."""
    rule, code = _NO_BFLOAT16.get(device.vendor, {}), (arch(device) or "").lower()
    number = capability_number(code)
    return (number is not None and number < rule.get("below", 0)) or any(
        word in code for word in rule.get("archs", ())
    )


def described(devices: Iterable[NamedDevice]) -> str:
    """The first device that anything is known of, with its code: "NVIDIA A10 (sm_86)"."""
    known = next((one for one in devices if one.name or one.arch), None)
    if known is None:
        return "this device"
    code = arch(known)
    return " ".join(filter(None, (known.name, f"({code})" if code else None)))
