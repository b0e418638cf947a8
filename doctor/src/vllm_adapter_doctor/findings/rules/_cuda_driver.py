"""Which NVIDIA driver and which CUDA runtime count on a box."""

from __future__ import annotations

from typing import Final

from vllm_adapter.hostfacts.facts import Driver
from vllm_adapter_doctor.devices import driver_rules
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.vendor_data.driver_tables import runtime_of as runtime_of_torch

VENDOR: Final = "cuda"


def driver_of(box: ExaminedHost) -> Driver | None:
    """The NVIDIA driver that counts: under WSL the Windows host's."""
    return driver_rules.driver_of(box.facts, "nvidia")


def runtime_of(box: ExaminedHost) -> str | None:
    """The CUDA runtime that torch was built with, as far as the report tells."""
    kind, version = runtime_of_torch(box.facts.torch)
    return version if kind == VENDOR else None
