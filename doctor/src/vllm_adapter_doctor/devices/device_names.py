"""Compute capabilities of devices by product name; source: NVIDIA's list of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol


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


_PRODUCTS: Final = {
    "cuda": (
        (r"B300\b|GB300", "10.3"),
        (r"\bG?B[12]00\b", "10.0"),
        (r"GB10\b", "12.1"),
        (r"RTX 50\d\d|RTX PRO \d{4}\b.*Blackwell|RTX PRO 6000", "12.0"),
        (r"\bG?H(?:100|200|800|20)\b", "9.0"),
        (r"RTX 40\d\d|\bL(?:4|20|40S?|2)\b|RTX \d{4} Ada|Ada Generation", "8.9"),
        (r"\bOrin\b", "8.7"),
        (r"\bA(?:100|800|30)\b|\bA100-|\bA800-", "8.0"),
        (r"RTX 30\d\d|\bA(?:2|10G?|10M|16|40)\b|RTX A[2-6]\d00\b", "8.6"),
        (r"\bXavier\b", "7.2"),
        (
            r"RTX 20\d\d|GTX 16\d\d|\bT4G?\b|Quadro RTX [3-8]000|TITAN RTX|\bT[1246]00\b|T[12]000",
            "7.5",
        ),
        (r"\bV100\b|TITAN V\b|Quadro GV100", "7.0"),
        (r"GTX 10\d\d|TITAN Xp|TITAN X \(Pascal\)|\bP40?\b|\bP6\b|Quadro P\d+", "6.1"),
        (r"\bP100\b|Quadro GP100", "6.0"),
        (r"GTX 9[5-8]0|\bM(?:4|40|60)\b|Quadro M\d+|GTX TITAN X", "5.2"),
        (r"GTX 75\d|GTX 9[0-4]\dM?|GTX 960M", "5.0"),
        (r"\bK80\b", "3.7"),
        (r"\bK[24]0[mct]?\b|GTX 78\d|GTX TITAN\b", "3.5"),
    )
}
"""Of each vendor whose tools may name the product alone."""


def capability(device: NamedDevice) -> str | None:
    """ "8.6" and the like: as a tool told it, else by the product's name; None where unknown."""
    products = _PRODUCTS.get(device.vendor)
    if products is None:
        return None
    reported = re.fullmatch(r"sm_(\d+)(\d)[af]?", device.arch or "")
    if reported:
        return f"{reported[1]}.{reported[2]}"
    name = device.name or ""
    return next((number for names, number in products if re.search(names, name)), None)


def arch(device: NamedDevice) -> str | None:
    """ "sm_86" or "gfx90a": the device's code, where it is known."""
    number = capability(device)
    return f"sm_{number.replace('.', '')}" if number else device.arch


def below(device: NamedDevice, level: float) -> bool:
    """Whether the compute capability is known, and lower."""
    number = capability(device)
    return number is not None and float(number) < level


def described(devices: Iterable[NamedDevice]) -> str:
    """The first device that anything is known of, with its code: "NVIDIA A10 (sm_86)"."""
    known = next((one for one in devices if one.name or one.arch), None)
    if known is None:
        return "this device"
    code = arch(known)
    return " ".join(filter(None, (known.name, f"({code})" if code else None)))
