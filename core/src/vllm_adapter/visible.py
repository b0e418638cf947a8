"""Visible-devices variables: which device one of them hides, and what to set to see only some.

The forms differ by vendor, and so do the numbers: CUDA counts fastest first unless told to count
by bus address; ROCR_VISIBLE_DEVICES filters before HIP_VISIBLE_DEVICES, which then counts what is
left; Level Zero's mask comes before ONEAPI_DEVICE_SELECTOR; Gaudi takes module ids, which are not
the tool's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_adapter.host.box_device import Device, Inventory
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.known_vendors import VENDORS

_READ: Final[Mapping[str, tuple[str, ...]]] = {
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "hygon": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
}
"""The variables that a vendor's stack reads, in their order, where it is not `visible` alone."""
_NONE: Final = frozenset({"-1", "none", "void", "nodevfiles"})


@dataclass(frozen=True, slots=True)
class Environment:
    """What a process needs so that it sees just its devices.

    `unset` are variables that must not be set beside them. `notes` are sentences; one of them
    says so where a value is not known.
    """

    variables: tuple[tuple[str, str], ...]
    unset: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def variables_of(vendor: str) -> tuple[str, ...]:
    """The variables that limit what a process sees of this vendor's devices."""
    row = VENDORS.get(vendor)
    return _READ.get(vendor) or ((row.visible,) if row and row.visible else ())


def hidden_by(device: Device, siblings: Sequence[Device], facts: HostFacts) -> str | None:
    """The variable of the facts that hides the device; None if none does, or none can be read."""
    if device.visible or device.vendor == "gaudi":
        return None
    set_ = [name for name in variables_of(device.vendor) if facts.variable(name) is not None]
    if len(set_) > 1:  # the second counts what the first left: only emptiness is plain
        set_ = [name for name in set_ if _hides_all(facts.variable(name))]
    for name in set_:
        value = facts.variable(name) or ""
        if _hides_all(value):
            return name
        items = [item.strip() for item in value.split(",") if item.strip()]
        if all(item.isdigit() for item in items):
            by_bus = facts.variable("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
            alike = len({(one.name, one.arch) for one in siblings}) == 1
            if device.vendor == "cuda" and not (by_bus or alike):
                continue
            if str(device.index) not in items:
                return name
        elif device.uuid and all(item[:4] in ("GPU-", "MIG-") for item in items):
            if not any(device.uuid.startswith(item) for item in items):
                return name
    return None


def filtered_twice(found: Inventory, facts: HostFacts) -> list[str]:
    """Where two variables are set of which the second counts what the first left."""
    notes = []
    for vendor in dict.fromkeys(device.vendor for device in found.devices):
        first, *rest = _READ.get(vendor, ("",))
        later = [name for name in rest if facts.variable(name)]
        if facts.variable(first) and later:
            notes.append(
                f"{first} filters first, and {', '.join(later)} counts what is left: set only one"
            )
    return notes


def _hides_all(value: str | None) -> bool:
    return value is not None and (value.strip() == "" or value.strip().lower() in _NONE)


def environment_for(devices: Sequence[Device], siblings: Sequence[Device]) -> Environment:
    """What makes a process see just these devices of one vendor, in this order.

    `siblings` are all devices of that vendor on the box.
    """
    vendor = devices[0].vendor
    row = VENDORS.get(vendor)
    numbers = ",".join(str(device.index) for device in devices)
    if row is None or row.visible is None:
        return Environment((), (), ("no variable is known here that limits what it sees",))
    if vendor == "cuda":
        return _cuda(devices)
    if vendor in ("rocm", "hygon"):
        return Environment(
            (("HIP_VISIBLE_DEVICES", numbers),),
            ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
            ("ROCR_VISIBLE_DEVICES filters first and shifts these numbers: keep it unset",),
        )
    if vendor == "xpu":
        mixed = any(one.integrated for one in siblings)
        check = (
            ("an integrated GPU is listed too: check the numbers with `sycl-ls`",) if mixed else ()
        )
        variables = ((row.visible, numbers), ("ONEAPI_DEVICE_SELECTOR", "level_zero:gpu"))
        return Environment(variables, (), check)
    if vendor == "gaudi" and any(d.told is None or d.told.logical is None for d in devices):
        note = f"HABANA_VISIBLE_MODULES takes module ids, which are not told: `{row.tool}`"
        return Environment((), ("HABANA_VISIBLE_DEVICES",), (note,))
    return Environment(((row.visible, numbers),))


def _cuda(devices: Sequence[Device]) -> Environment:
    order = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if any(device.partition for device in devices):
        ids = [device.uuid for device in devices]
        if not all(ids):
            return Environment((), (), ("a MIG instance goes by its UUID: `nvidia-smi -L`",))
        more = ("a CUDA process sees the first MIG instance alone",) if len(ids) > 1 else ()
        variables = (order, ("CUDA_VISIBLE_DEVICES", ",".join(filter(None, ids))))
        return Environment(variables, (), more)
    numbers = [str(d.index if d.physical is None else d.physical) for d in devices]
    return Environment((order, ("CUDA_VISIBLE_DEVICES", ",".join(numbers))))
