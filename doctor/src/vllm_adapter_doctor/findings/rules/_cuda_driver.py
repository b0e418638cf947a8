"""Which NVIDIA driver and which CUDA runtime count on a box."""

from __future__ import annotations

import re

from vllm_adapter.hostfacts.facts import Driver
from vllm_adapter_doctor.findings.box import Box
from vllm_adapter_doctor.vendor_data.driver_versions import older, parse_version


def driver_of(box: Box) -> Driver | None:
    """The NVIDIA driver that counts: under WSL the Windows host's."""
    return box.facts.driver("windows") or box.facts.driver("nvidia")


def is_older(version: str, than: str) -> bool:
    one, other = parse_version(version), parse_version(than)
    return bool(one and other and older(one, other))


def runtime_of(box: Box) -> str | None:
    """The CUDA runtime that torch was built with, as far as the report tells."""
    torch = box.facts.torch
    if torch is None:
        return None
    if torch.cuda:
        return torch.cuda
    built = re.fullmatch(r"cu(\d{2})(\d)", torch.local or "")
    return f"{built[1]}.{built[2]}" if built else None
