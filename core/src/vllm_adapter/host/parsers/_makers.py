"""Who made a device, by the name that a tool prints for it.

A tool's face says little: CUDA, ROCm and `nvidia-smi` exist with other makers' chips behind them.
"""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = (
    ("thead", re.compile(r"\bPPU\b|T-?Head|\bZW[0-9]{3}", re.I)),
    ("metax", re.compile(r"MetaX|\bMXC[0-9]{3}|\bMXN[0-9]{3}", re.I)),
    ("iluvatar", re.compile(r"Iluvatar|\b(?:BI|MR)-V[0-9]{2,3}", re.I)),
    ("hygon", re.compile(r"Hygon|\bDCU\b|\bHCU\b|\bBW[0-9]{3}\b|\b[KZ]100(?:_|\b)", re.I)),
    ("gaudi", re.compile(r"\bHL-[0-9]{3}|Gaudi|Habana|\bGoya\b", re.I)),
    ("musa", re.compile(r"\bMTT\b|Moore ?Threads", re.I)),
    ("mlu", re.compile(r"\bMLU[0-9X]|Cambricon", re.I)),
    ("kunlunxin", re.compile(r"Kunlun|\b(?:P800|R[23]00|R480)\b", re.I)),
    ("biren", re.compile(r"Biren|\bBR1[0-9]{2}", re.I)),
    ("enflame", re.compile(r"Enflame|\bGCU\b", re.I)),
    ("ascend", re.compile(r"Ascend|\b(?:910|310)[A-Z]", re.I)),
    ("cuda", re.compile(r"NVIDIA|GeForce|Tesla|Quadro|\bTITAN\b", re.I)),
    ("rocm", re.compile(r"\bAMD\b|Radeon|Instinct|Advanced Micro", re.I)),
    ("xpu", re.compile(r"\bIntel\b", re.I)),
)


def maker(name: str | None, default: str) -> str:
    """The adapter's name of who made a device; `default` where the name does not say."""
    for vendor, pattern in _NAMES if name else ():
        if pattern.search(name or ""):
            return vendor
    return default
