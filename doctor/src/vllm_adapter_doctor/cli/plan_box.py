"""The devices that a plan may use, for core's planner: the one list of verdicts, as its data."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vllm_adapter.errors import InputError
from vllm_adapter.planning.box import BoxFlag, LostFeature, PlanBox, PlanDevice

if TYPE_CHECKING:
    from vllm_adapter.contract.capability import Capability
    from vllm_adapter.discovery.records import AdapterRecord
    from vllm_adapter_doctor.devices.manager import DeviceCandidate, DeviceManager

_WANTED: Final = ("bfloat16", "float16", "float8_e4m3fn", "float4_e2m1fn")


def box_for(report: str | None, described: Capability | None = None) -> PlanBox:
    """The chosen devices of a report, or with None those of this machine.

    `described` is the descriptor of devices that the report shows and does not name.

    Raises:
        InputError: the report cannot be read, nothing may be used, or no descriptor is for it.
    """
    from vllm_adapter_doctor.cli.devices import device_manager

    manager = device_manager(argparse.Namespace(report=report))
    origin = "this machine" if report is None else f"report {report}"
    return box_of(manager, origin, described)


def box_of(manager: DeviceManager, origin: str, described: Capability | None = None) -> PlanBox:
    """The devices that a manager chooses; errors as `box_for`."""
    choice = manager.choose()
    refused = tuple((one.device.id, one.reason) for one in choice.rejected)
    if choice.chosen:
        box = _devices(manager, choice.chosen, origin, described)
    elif choice.cpu:
        box = _cpu(manager, origin)
    else:
        first = f": {refused[0][0]}: {refused[0][1]}" if refused else ""
        raise InputError(
            f"nothing can be planned on: {choice.sentence}{first}",
            hint="`vllm-adapter devices` lists every device with its reasons",
        )
    notes = (choice.sentence, *choice.notes)
    return replace(box, refused=refused, notes=notes)


def _devices(
    manager: DeviceManager,
    chosen: Sequence[DeviceCandidate],
    origin: str,
    described: Capability | None,
) -> PlanBox:
    from vllm_adapter_doctor.devices.visible import (
        limits_of,
        numbers_are_reported,
        program_number,
    )
    from vllm_adapter_doctor.topology.advice import tensor_groups
    from vllm_adapter_doctor.topology.read import build

    known = {one.device.id: one.capability for one in manager.recognised() if one.capability}
    first = chosen[0].device
    capability = described or known.get(first.id)
    if capability is None:
        why = "nothing names it" if not first.name and not first.arch else chosen[0].adapter
        raise InputError(
            f"{first.id} ({first.title}) has no descriptor here: {why}",
            hint="add what the vendor's tool prints of its devices, or say which chip it is with "
            "--device-profile h200",
        )
    topology = build(manager.facts)
    labels = {one.device.id: one.label for one in topology.devices}
    mine = [labels[one.device.id] for one in chosen if one.device.id in labels]
    groups = tensor_groups(topology, mine) if mine else []
    groups_of = {label: at for at, group in enumerate(groups) for label in group}
    places = {one.device.id: one for one in topology.devices}
    devices = []
    for one in chosen:
        place = places.get(one.device.id)
        node = place.numa_node if place else one.device.numa_node
        cpus = place.to_json()["cpus"] if place else ""
        domain = groups_of.get(labels.get(one.device.id, ""), 0)
        number = str(program_number(one.device))
        devices.append(PlanDevice(one.device.id, one.device.title, domain, node, cpus, number))
    siblings = manager.inventory.of(first.vendor)
    limits = limits_of(first.vendor)
    counted = limits.numbers != "logical" or numbers_are_reported(siblings)
    parts = any(device.partition for device in siblings)
    numa = next((one for one in topology.maps if one.vendor == first.vendor), None)
    bound = numa is not None and len(chosen) == len(siblings)
    sentences = [d.sentence for d in topology.domains if set(d.devices) & set(mine)]
    alone = "one device" if len(chosen) == 1 else "no links are known: one domain assumed"
    return PlanBox(
        origin,
        first.vendor,
        capability,
        tuple(devices),
        "; ".join(sentences) or alone,
        lost=tuple(_lost(manager, capability)),
        numa_bound=bool(numa and numa.flags and bound),
        numa_why=numa.sentence if numa else "no NUMA node of a device is known",
        visible=limits.set if counted and not parts else (),
        all_numbers=tuple(str(program_number(device)) for device in siblings),
        container=_container(manager, chosen),
        free_bytes=_free(chosen),
        record=_record(manager, first.vendor),
    )


def _free(chosen: Sequence[DeviceCandidate]) -> int | None:
    """What the fullest device has left; None where nobody told of each."""
    left = [
        one.device.memory_total_bytes - one.device.memory_used_bytes
        for one in chosen
        if one.device.memory_total_bytes and one.device.memory_used_bytes is not None
    ]
    return min(left) if len(left) == len(chosen) else None


def _lost(manager: DeviceManager, capability: Capability) -> Iterator[LostFeature]:
    """What the verdicts of this box say of dtypes: by the arch, and by the driver."""
    from vllm_adapter_doctor.devices.driver_rules import negotiate
    from vllm_adapter_doctor.devices.verdict import Outcome

    for one in negotiate(capability, manager.facts, _WANTED):
        if one.outcome is Outcome.DOWNGRADE and one.feature and one.to:
            unit = capability.compute_units.get(one.feature)
            if not (unit and unit.emulated):  # stored as it is, and computed in another
                reason = one.reason.partition("; ")[0]
                yield LostFeature(one.feature, one.to, reason, one.pointer or "")


def _container(manager: DeviceManager, chosen: Sequence[DeviceCandidate]) -> tuple[BoxFlag, ...]:
    from vllm_adapter_doctor.containers.flags import DeviceRequest, run_flags
    from vllm_adapter_doctor.devices.node_rules import on_wsl

    vendor = chosen[0].device.vendor if chosen else "cpu"
    devices = tuple(one.device for one in chosen)
    siblings = manager.inventory.of(vendor)
    order = DeviceRequest(vendor, devices, siblings, manager.facts, on_wsl(manager.facts))
    try:
        return tuple(BoxFlag(one.text, one.why, one.source) for one in run_flags(order, "docker"))
    except InputError:  # no recipe is known for this vendor
        return ()


def _record(manager: DeviceManager, name: str) -> AdapterRecord | None:
    return next((one for one in manager.records if one.name == name), None)


def _cpu(manager: DeviceManager, origin: str) -> PlanBox:
    from vllm_adapter.discovery.adapter import Adapter
    from vllm_adapter.discovery.descriptors import choose, load_all
    from vllm_adapter.errors import AdapterError, CapabilityError

    record = _record(manager, "cpu")
    if record is None or record.manifest is None:
        raise InputError(
            "only the CPU is left, and its adapter is not installed",
            hint="pip install vllm-adapter-cpu, or plan for a chip: --device-profile h200",
        )
    facts = manager.facts
    found = choose(load_all(record.manifest), facts)
    if found is None:
        raise InputError(
            f"the CPU adapter has no descriptor for {facts.os.machine or 'an unknown machine'}",
            hint="paste `uname -a` and `lscpu` into the report, or take --device-profile h200",
        )
    try:
        live = Adapter(record).call("describe", device="cpu", host=facts)
        capability = found.refined(live) if live else found
    except (AdapterError, CapabilityError):
        capability = found
    name = facts.cpu.model or "CPU"
    free = facts.memory.available_bytes
    limit = facts.cgroup.memory_limit_bytes
    if free is not None and limit is not None:
        free = min(free, limit)
    return PlanBox(
        origin,
        "cpu",
        capability,
        (PlanDevice("cpu", name),),
        "one device",
        numa_why="the CPU adapter binds nothing",
        container=_container(manager, ()),
        free_bytes=free,
        record=record,
    )
