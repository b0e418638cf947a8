"""Visible-devices variables: which device one of them hides, and what to set to see only some.

The forms differ by vendor, and so do the numbers: CUDA counts fastest first unless told to count
by bus address; ROCR_VISIBLE_DEVICES filters before HIP_VISIBLE_DEVICES, which then counts what is
left; Level Zero's mask comes before ONEAPI_DEVICE_SELECTOR; Gaudi takes module ids, which are not
the tool's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS, VisibleDevicesRule
from vllm_adapter_doctor.devices.box_device import Device, Inventory

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
    return row.limits.read if row else ()


def hidden_by(device: Device, siblings: Sequence[Device], facts: HostFacts) -> str | None:
    """The variable of the facts that hides the device; None if none does, or none can be read."""
    limits = limits_of(device.vendor)
    if device.visible or limits.numbers == "logical":
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
            alike = len({(one.name, one.arch) for one in siblings}) == 1
            if not (alike or counts_in_bus_order(limits, facts)):
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
        first, *rest = variables_of(vendor) or ("",)
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
    row = VENDORS.get(devices[0].vendor)
    if row is None or row.visible is None:
        return Environment((), (), ("no variable is known here that limits what it sees",))
    limits = row.limits
    if limits.numbers == "logical" and not numbers_are_reported(devices):
        return Environment((), limits.unknown_unset, (limits.unknown,) if limits.unknown else ())
    notes = [limits.note, limits.mixed if any(one.integrated for one in siblings) else None]
    named = [str(program_number(device)) for device in devices]
    if limits.instances and any(device.partition for device in devices):
        unknown, several = limits.instances
        named = [device.uuid for device in devices if device.uuid]
        if len(named) < len(devices):
            return Environment((), (), (unknown,))
        notes.append(several if len(named) > 1 else None)
    numbers = ",".join(named)
    return Environment(
        tuple((name, value.format(numbers=numbers)) for name, value in limits.set),
        limits.unset,
        tuple(note for note in notes if note),
    )


def limits_of(vendor: str) -> VisibleDevicesRule:
    """The vendor's rule; one without a variable for a vendor that is not known."""
    row = VENDORS.get(vendor)
    return row.limits if row else VisibleDevicesRule()


def counts_in_bus_order(limits: VisibleDevicesRule, facts: HostFacts) -> bool:
    """Whether the runtime counts unlike devices as the bus does, here."""
    return limits.order is None or facts.variable(limits.order[0]) == limits.order[1]


def numbers_are_reported(devices: Sequence[Device]) -> bool:
    """Whether the numbers by which a program counts the devices were told of each."""
    return all(one.reported is not None and one.reported.logical is not None for one in devices)


def program_number(device: Device) -> int:
    """The number that the vendor's variable takes for the device."""
    own = limits_of(device.vendor).numbers == "physical" and device.physical is not None
    return device.physical if own and device.physical is not None else device.index
