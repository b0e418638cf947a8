"""Graphics devices as lists of hardware name them: whose they are, and whether in a processor."""

from __future__ import annotations

import re
from typing import Final

_MAKERS: Final = (
    ("cuda", "10de", re.compile(r"\bNVIDIA\b", re.I)),
    ("rocm", "1002", re.compile(r"Advanced Micro Devices|\bAMD\b|\bATI\b")),
    ("gaudi", "1da3", re.compile(r"Habana|\bGaudi", re.I)),
    ("xpu", "8086", re.compile(r"\bIntel\b")),
    ("ascend", "19e5", re.compile(r"Huawei|HiSilicon", re.I)),
    ("musa", "1ed5", re.compile(r"Moore Threads", re.I)),
    ("metax", "9999", re.compile(r"\bMetaX\b", re.I)),
    ("mlu", "cabc", re.compile(r"Cambricon", re.I)),
    ("hygon", "1d94", re.compile(r"Hygon|Haiguang", re.I)),
    ("iluvatar", "1e3e", re.compile(r"Iluvatar", re.I)),
    ("enflame", "1e36", re.compile(r"Enflame", re.I)),
    ("kunlunxin", "1d22", re.compile(r"Kunlun|Baidu", re.I)),
    ("neuron", "1d0f", re.compile(r"Amazon\.com")),
    ("tpu", "1ae0", re.compile(r"\bGoogle\b")),
)
_ASCEND: Final = re.compile(r"\bDevice d[0-9a-f]{3}\b|Ascend|Davinci|\[19e5:d[0-9a-f]{3}\]", re.I)
_CLOUD: Final = {  # whose virtual machines show a display of the same maker
    "neuron": re.compile(r"Neuron|Inferentia|Trainium|\bDevice 7[0-9a-f]{3}\b"),
    "tpu": re.compile(r"\bTPU\b"),
}
_CARD: Final = {
    "xpu": re.compile(
        r"\bArc(?:\(TM\))? (?:Pro )?[AB]\d{2,3}\b|Data Center GPU|\bDG[12]\b|Battlemage"
    ),
    "rocm": re.compile(
        r"\bNavi\b|Instinct|\bRadeon (?:RX|Pro|AI PRO)\b|Aldebaran|Aqua Vanjaram|\bMI\d"
    ),
}
_PART: Final = {
    "xpu": re.compile(r"\bU?HD Graphics|\bIris\b|Integrated Graphics|Xe Graphics"),
    "rocm": re.compile(
        r"Raphael|Rembrandt|Cezanne|Renoir|Picasso|Raven|Lucienne|Barcelo|Phoenix|Hawk ?Point"
        r"|Strix|Granite Ridge|Mendocino|Van ?Gogh|Kaveri|Carrizo|Krackan|Radeon \d{3}M\b"
    ),
}


def maker_of_text(text: str, kind: str) -> tuple[str, str] | None:
    """(adapter, PCI vendor id) of a display or accelerator device by its line's words.

    `kind` is the class in words. Huawei's and Intel's other accelerators (compression, FPGA) are
    none of ours.
    """
    accelerator = "accelerator" in kind.lower()
    for adapter, vendor, pattern in _MAKERS:
        if pattern.search(text):
            if adapter == "ascend" and not (accelerator and _ASCEND.search(text)):
                return None
            if adapter in _CLOUD and not (accelerator or _CLOUD[adapter].search(text)):
                return None
            return None if adapter == "xpu" and accelerator else (adapter, vendor)
    return None


def in_processor(adapter: str, name: str, bdf: str | None) -> bool | None:
    """Whether a graphics device is part of the processor; None where nothing tells."""
    if adapter not in _CARD:
        return False
    if _CARD[adapter].search(name):
        return False
    if _PART[adapter].search(name) or (adapter == "xpu" and bdf == "0000:00:02.0"):
        return True
    return False if adapter == "xpu" and bdf and bdf.split(":")[1] != "00" else None
