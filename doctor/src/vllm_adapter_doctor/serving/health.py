"""Whether the devices that a program is about to open are in order: the doctor's own rules.

A device is judged by what its vendor's library or tool says of it now (`host.live_health`). What
happens where one is not in order is a policy of the caller; see `before_start.Policy`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.health_rules import is_broken
from vllm_adapter_doctor.devices.manager import DeviceCandidate, DeviceManager
from vllm_adapter_doctor.devices.rules import GIB
from vllm_adapter_doctor.devices.verdict import Outcome
from vllm_adapter_doctor.devices.visible import (
    counts_in_bus_order,
    hidden_by,
    limits_of,
    numbers_are_reported,
    program_number,
    variables_of,
)
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.register import rules_of
from vllm_adapter_doctor.report.merge import same_device

WATCHED: Final = ("VA1701", "VA1704", "VA1707", "VA1703", "VA1702")
"""The codes that are about a device's health, the worst first."""
_TAKEN_SHARE: Final = 0.10
"""Of an idle device's memory. The most that a driver keeps to itself is 5 per cent (Ascend)."""


@dataclass(frozen=True, slots=True)
class DevicesInUse:
    """The devices that a program will open, in its own order.

    Not `certain`: it opens some of these, and which is not known.
    """

    devices: tuple[Device, ...] = ()
    certain: bool = True


def used(manager: DeviceManager, vendor: str, count: int | None) -> DevicesInUse:
    """The first `count` devices of a vendor that the environment lets a program see.

    `count` is None where nobody can tell how many it takes.
    """
    siblings = manager.inventory.of(vendor)
    visible, ordered = _visible(siblings, manager.facts)
    if count is None or count >= len(visible):
        return DevicesInUse(visible, count is not None or len(visible) == 1)
    return DevicesInUse(visible[:count], True) if ordered else DevicesInUse(visible, False)


def _visible(siblings: Sequence[Device], facts: HostFacts) -> tuple[tuple[Device, ...], bool]:
    """What a program sees, and whether that is in its order."""
    if not siblings:
        return (), True
    plain = _numbers_are_known(siblings, facts)
    values = [facts.variable(name) for name in variables_of(siblings[0].vendor)]
    set_ = [value for value in values if value is not None]
    if not set_:
        return tuple(siblings), plain
    items = [item.strip() for item in set_[0].split(",") if item.strip()]
    found = [one for item in items if (one := _named(item, siblings, plain)) is not None]
    if len(set_) == 1 and items and len(found) == len(items):
        return tuple(found), True
    return tuple(one for one in siblings if not hidden_by(one, siblings, facts)), False


def _numbers_are_known(siblings: Sequence[Device], facts: HostFacts) -> bool:
    """Whether a program numbers the devices as we do."""
    limits = limits_of(siblings[0].vendor)
    if limits.numbers == "logical":  # Gaudi's module ids, which its table does not tell
        return numbers_are_reported(siblings)
    # CUDA counts the fastest first, unless told to count by bus address
    alike = len({(one.name, one.arch, one.memory_total_bytes) for one in siblings}) == 1
    return alike or counts_in_bus_order(limits, facts)


def _named(item: str, siblings: Sequence[Device], plain: bool) -> Device | None:
    if item.isdigit():
        by_number = [one for one in siblings if plain and program_number(one) == int(item)]
        return by_number[0] if len(by_number) == 1 else None
    by_id = [one for one in siblings if one.uuid and one.uuid.startswith(item)]
    return by_id[0] if len(by_id) == 1 else None


def later_reading_of(device: Device, accelerators: Sequence[Accelerator]) -> Accelerator | None:
    """What a later reading says of a device; None if it does not list it."""
    key = device.reported or Accelerator(
        device.vendor, device.index, "inventory", bdf=device.bdf, uuid=device.uuid
    )
    return next((one for one in accelerators if same_device(key, one)), None)


def findings(one: Accelerator, *, own: Collection[int] = (), idle: bool = False) -> list[Finding]:
    """What is wrong with a device, the worst first.

    `own` are process ids that may hold it. With `idle` nothing of ours has opened it yet, so that
    memory in use is another program's even where no process is reported.
    """
    others = tuple(p for p in one.processes if p.pid not in own)
    theirs = sum(p.memory_bytes or 0 for p in others)
    memory = one.memory_used_bytes if idle else theirs
    seen = replace(one, processes=others, memory_used_bytes=memory)
    found = [
        each
        for rule in rules_of("health")
        for each in rule.check(ExaminedHost(HostFacts(accelerators=(seen,)), live=True))
        if each.code in WATCHED and each.severity is not Severity.NOTE
    ]
    if idle and all(each.code != "VA1703" for each in found):
        found += _taken(seen)
    return sorted(found, key=lambda each: WATCHED.index(each.code))


def _taken(one: Accelerator) -> list[Finding]:
    total, taken = one.memory_total_bytes, one.memory_used_bytes
    if not total or not taken or one.integrated or one.unified_memory:
        return []
    if taken <= total * _TAKEN_SHARE:
        return []
    where = f" ({one.bdf})" if one.bdf else ""
    sizes = f"{taken / GIB:.1f} of {total / GIB:.1f} GiB in use"
    return [
        Finding(
            "VA1703",
            Severity.WARNING,
            (Evidence(sizes, one.source),),
            f"{one.vendor} device {one.index}{where} is held by another program: {sizes}",
            CODES["VA1703"].action,
        )
    ]


def refuses(one: Finding) -> bool:
    """Whether a finding says that the device cannot be used: as `vllm-adapter devices` has it."""
    return one.severity is Severity.ERROR


def is_lost(one: Finding, reported: Accelerator) -> bool:
    """Whether a server that runs has lost the device: an alarm alone does not end it."""
    return refuses(one) and one.code in ("VA1701", "VA1704") and is_broken(reported)


def verdict_findings(candidate: DeviceCandidate) -> list[Finding]:
    """What else stops a device that is about to be opened: its driver, its torch build, MIG.

    Its health has findings of its own; and its tool has just opened it, whatever its nodes are.
    """
    return [
        Finding(one.code, Severity.ERROR, one.evidence, one.reason, one.next_step)
        for one in candidate.verdicts
        if one.outcome is Outcome.REFUSE and one.subject in ("driver", "build", "MIG")
    ]


def sentence(one: Finding) -> str:
    """A finding as one sentence with its evidence and code."""
    evidence = "; ".join(each.text for each in one.evidence)
    seen = "" if not evidence or evidence in one.cause else f" ({evidence})"
    return f"{one.cause}{seen} [{one.code}]"


def family(root: int, parents: Mapping[int, int] | None = None) -> set[int]:
    """A process and all that descend from it; of /proc unless `parents` says them by id."""
    known = _parents() if parents is None else parents
    found, grew = {root}, True
    while grew:
        more = {pid for pid, parent in known.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return found


def _parents() -> dict[int, int]:
    """Each process's parent, as /proc has it; empty where there is no such thing."""
    found = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    for name in names:
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):  # it ended meanwhile
            continue
    return found
