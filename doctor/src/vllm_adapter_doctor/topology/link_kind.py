"""One taxonomy for what every vendor's tool prints of a link between two devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from vllm_adapter.hostfacts.vendor_files import once, sections


class LinkKind(IntEnum):
    """Where the shortest way between two devices runs; a smaller one is closer."""

    SELF = 0
    """The device itself."""
    DIE = 1
    """Two dies or stacks of one package (SIO, MDF)."""
    FABRIC = 2
    """The vendor's own fabric (NVLink, XGMI, HCCS, Xe Link, MTLink)."""
    SWITCH = 3
    """At most one PCIe switch (PIX)."""
    BRIDGE = 4
    """Several PCIe switches, no host bridge (PXB)."""
    HOST = 5
    """A host bridge, that is a CPU (PHB)."""
    NODE = 6
    """Several host bridges of one NUMA node (NODE)."""
    SYSTEM = 7
    """From one NUMA node to another (SYS)."""
    UNKNOWN = 8
    """Nobody said."""

    @property
    def word(self) -> str:
        """The kind in lower case, as JSON has it."""
        return self.name.lower()

    @property
    def fast(self) -> bool:
        """Whether devices joined by it form a link domain."""
        return self in (LinkKind.DIE, LinkKind.FABRIC)


@dataclass(frozen=True, slots=True)
class LinkClass:
    """A cell of a link table in normalised words.

    `fabric` is its name, such as "NVLink"; `lanes` how many are bonded, where the tool counts
    them. `hops` is how many links lie between the devices: 1 is a direct one, None is unknown.
    `text` is what the tool printed. `switched` says that the fabric runs through a switch.
    """

    kind: LinkKind
    text: str | None = None
    fabric: str | None = None
    lanes: int | None = None
    hops: int | None = None
    switched: bool = False

    @property
    def shown(self) -> str:
        """Short, for a cell of our own table: "NV18", "XGMI x2", "switch", "?"."""
        if self.kind is LinkKind.SELF:
            return "-"
        if self.kind is LinkKind.UNKNOWN:
            return "?"
        if not self.kind.fast:
            return self.kind.word
        name = self.text or self.fabric or self.kind.word
        return f"{name} {self.hops} hops" if self.hops is not None and self.hops > 1 else name

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "kind": self.kind.word,
            "text": self.text,
            "fabric": self.fabric,
            "lanes": self.lanes,
            "hops": self.hops,
            "switched": self.switched,
        }


UNKNOWN: Final = LinkClass(LinkKind.UNKNOWN)
XGMI_HOP_WEIGHT: Final = 15
"""Of one XGMI link.

# upstream: linux drivers/gpu/drm/amd/amdkfd/kfd_crat.c: KFD_CRAT_XGMI_WEIGHT
"""
PCIE_SEGMENT_WEIGHT: Final = 20
"""From a device to its CPU; above two of them, the rest is the NUMA distance between CPUs.

# upstream: linux drivers/gpu/drm/amd/amdkfd/kfd_crat.c: kfd_fill_gpu_direct_io_link_to_cpu
"""

_COMMON: Final = {
    "X": LinkKind.SELF,
    "S": LinkKind.SELF,
    "SELF": LinkKind.SELF,
    "PIX": LinkKind.SWITCH,
    "PXB": LinkKind.BRIDGE,
    "PHB": LinkKind.HOST,
    "NODE": LinkKind.NODE,
    "SYS": LinkKind.SYSTEM,
    "SOC": LinkKind.SYSTEM,
}


@once
def _plain() -> dict[str, LinkKind]:
    """Words that need no reading, those that vendors have for two dies of a package among them."""
    dies = {word: LinkKind.DIE for _, words in sections("links", "die") for word in words}
    return _COMMON | dies


@once
def _fabrics() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Cells of the vendors' own fabrics; a group of a pattern is how many links are bonded."""
    return tuple(
        (re.compile(one["pattern"]), one["name"])
        for _, fabrics in sections("links", "fabrics")
        for one in fabrics
    )


def classify(text: str | None, weight: int | None = None) -> LinkClass:
    """What a cell says; `weight` is the number that AMD's tools print beside it.

    AMD's hops column is no input: `rocm-smi` prints 1 for every XGMI pair.
    """
    word = (text or "").strip().upper()
    plain = _plain().get(word)
    if plain is not None:
        return LinkClass(plain, text, word if plain is LinkKind.DIE else None)
    if word == "XGMI" or (not word and _is_xgmi(weight)):
        return LinkClass(LinkKind.FABRIC, "XGMI", "XGMI", hops=_xgmi_hops(weight))
    if word == "PCIE":
        return LinkClass(_pcie(weight), text)
    for pattern, name in _fabrics():
        found = pattern.fullmatch(word)
        if found:
            return _fabric(word, name, found)
    return LinkClass(LinkKind.UNKNOWN, text)


def _fabric(word: str, name: str, found: re.Match[str]) -> LinkClass:
    count = next((group for group in found.groups() if group), None)
    if count is not None and count.isdigit() and int(count) == 0:
        return LinkClass(LinkKind.UNKNOWN, word)
    return LinkClass(
        LinkKind.FABRIC,
        word,
        name,
        lanes=int(count) if count is not None and count.isdigit() else None,
        hops=None if count == "*" or word == "XGMI" else 1,  # XL*: by way of a third one
        switched=word.endswith("_SW"),
    )


def _is_xgmi(weight: int | None) -> bool:
    """Whether a weight without a link type can only be XGMI's: PCIe's begin at two segments."""
    return weight is not None and weight in (XGMI_HOP_WEIGHT, 2 * XGMI_HOP_WEIGHT)


def _xgmi_hops(weight: int | None) -> int | None:
    if weight is None or weight <= 0 or weight % XGMI_HOP_WEIGHT:
        return None
    return weight // XGMI_HOP_WEIGHT


def _pcie(weight: int | None) -> LinkKind:
    if weight is None:
        return LinkKind.UNKNOWN
    if weight > 2 * PCIE_SEGMENT_WEIGHT:
        return LinkKind.SYSTEM
    if weight == 2 * PCIE_SEGMENT_WEIGHT:
        return LinkKind.HOST
    return LinkKind.SWITCH if weight == PCIE_SEGMENT_WEIGHT else LinkKind.UNKNOWN
