"""What torch says of each device: name, arch, PCI place, memory, compute units.

Runs in the probing child. Torch builds differ in what their properties hold: whatever is not
there, or is of another type, is unknown.
"""

from __future__ import annotations

from typing import Any, Final

from vllm_adapter.hostfacts.facts import Accelerator

_UNITS: Final = ("multi_processor_count", "cube_core_num")
"""Streaming multiprocessors (CUDA, MUSA), compute units (HIP), cube cores (torch_npu)."""


def torch_devices(vendor: str, torch: Any, kind: str, count: int) -> list[Accelerator]:
    """One accelerator for each device of a torch device type; bare ones where torch tells nothing.

    `vendor` is the adapter's name. Never raises: a device that fails here shows it when opened.
    """
    ask = getattr(getattr(torch, kind, None), "get_device_properties", None)
    hip = getattr(torch.version, "hip", None) is not None
    found = []
    for index in range(count):
        try:
            properties = None if ask is None else ask(index)
        except Exception:
            properties = None
        found.append(_accelerator(vendor, index, kind, hip, properties))
    return found


def _accelerator(vendor: str, index: int, kind: str, hip: bool, properties: Any) -> Accelerator:
    name = getattr(properties, "name", None)
    return Accelerator(
        vendor=vendor,
        index=index,
        source="torch",
        name=name if isinstance(name, str) and name.strip() else None,
        bdf=_bdf(properties),
        arch=_arch(properties, hip) if kind == "cuda" else None,
        memory_total_bytes=_count(properties, "total_memory"),
        compute_units=next((n for key in _UNITS if (n := _count(properties, key))), None),
    )


def _count(properties: Any, name: str) -> int | None:
    value = getattr(properties, name, None)
    return value if isinstance(value, int) and value > 0 else None


def _arch(properties: Any, hip: bool) -> str | None:
    """ "gfx942" of an AMD build, whose (major, minor) is no capability; "sm_90" of NVIDIA's."""
    if hip:
        name = getattr(properties, "gcnArchName", None)
        return name.partition(":")[0] or None if isinstance(name, str) else None
    major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
    if isinstance(major, int) and isinstance(minor, int):
        return f"sm_{major}{minor}"
    return None


def _bdf(properties: Any) -> str | None:
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    parts = [getattr(properties, name, None) for name in names]
    if not all(isinstance(part, int) and part >= 0 for part in parts):
        return None
    domain, bus, device = parts
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
