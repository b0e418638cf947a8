"""Whose silicon is behind a torch: by names, by builds and by packages, never by the word CUDA."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.host.parsers._makers import maker

_SIGNS: Final = tuple(
    (vendor, re.compile(pattern, re.IGNORECASE))
    for vendor, pattern in (
        ("metax", r"\+metax|\bmaca\b|MACA_PATH|vllm[_-]metax|MetaX"),
        ("hygon", r"\+das\b|[+.]dtk\d|\bdtk-?\d|/opt/dtk|HCU\["),
        ("iluvatar", r"\+corex|corex-?\d|/usr/local/corex|Iluvatar"),
        ("thead", r"\+ppu\b|[+.]ppu\d|PPU_SDK|PPU-ZW"),
        ("musa", r"torch[_-]musa|MUSA_HOME|MTHREADS_"),
        ("mlu", r"torch[_-]mlu\b|NEUWARE_HOME"),
        ("enflame", r"torch[_-]gcu\b|TOPS_VISIBLE"),
        ("biren", r"torch[_-]br\b|BIREN"),
        ("kunlunxin", r"torch[_-]xmlir|XPU_VISIBLE_DEVICES.*kunlun|vllm[_-]kunlun"),
    )
)
_GENERIC: Final = re.compile(r"^(?:AMD Radeon Graphics|Graphics Device|Device)$", re.IGNORECASE)
PLUGINS: Final = re.compile(
    r"torch[_-](?:npu|xla|mlu|musa|gcu|br|neuronx|hpu)\b|habana[_-]|neuronx?[_-]|"
    r"intel[_-]extension[_-]for[_-]pytorch\S*\+xpu|vllm[_-](?:ascend|gaudi|neuron|tpu)\b|"
    r"VLLM_TARGET_DEVICE=(?:tpu|hpu|xpu|neuron|npu)",
    re.IGNORECASE,
)
"""A device that torch reaches by other ways than `torch.cuda`, which then says False."""


def behind(text: str) -> str | None:
    """The vendor whose software stands behind CUDA's or ROCm's face in this text."""
    return next((vendor for vendor, sign in _SIGNS if sign.search(text)), None)


def vendor_of(name: str, software: str | None, face: str | None) -> str | None:
    """Who made a device of this name.

    `software` is `behind` the report's text; `face` is what the tool takes devices for. None where
    nothing tells.
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
    if vendor == "cuda":
        return "sm_" + capability.replace(".", "")
    return {"9.4": "gfx942", "9.5": "gfx950"}.get(capability) if vendor == "rocm" else None
