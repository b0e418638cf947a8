"""From facts to devices: every candidate, the chosen ones, and why each other is not.

A box may hold devices of several vendors; a process serves one. So the choice is one vendor's
devices of one kind, and others are left for roles of their own (`devices.roles`). The CPU is
chosen by policy alone (VA_FALLBACK), and never in silence unless that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_adapter.discovery.records import AdapterRecord, Status
from vllm_adapter.errors import VllmAdapterError
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS, not_served
from vllm_adapter.settings import Fallback, Settings
from vllm_adapter_doctor.devices.box_device import Device, Inventory
from vllm_adapter_doctor.devices.box_vendor import box_vendor
from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.devices.recognition import RecognisedDevice, recognise
from vllm_adapter_doctor.devices.rules import GIB, Context, verdicts, warnings
from vllm_adapter_doctor.devices.verdict import PLACE, DeviceVerdict, Outcome
from vllm_adapter_doctor.devices.visible import filtered_twice, limits_of


@dataclass(frozen=True, slots=True)
class DeviceCandidate:
    """A device, and every verdict on it; usable where none stops it.

    `adapter` says whether an adapter for it is installed where this runs.
    """

    device: Device
    verdicts: tuple[DeviceVerdict, ...] = ()
    warnings: tuple[str, ...] = ()
    adapter: str = ""

    @property
    def refusals(self) -> tuple[DeviceVerdict, ...]:
        """The verdicts against it, the most fundamental first."""
        return tuple(one for one in self.verdicts if one.stops)

    @property
    def usable(self) -> bool:
        """Whether it may be chosen."""
        return not self.refusals

    @property
    def reason(self) -> str:
        """The most fundamental reason against it, or empty."""
        return self.refusals[0].reason if self.refusals else ""

    @property
    def next_step(self) -> str:
        """What to do about that reason, or empty."""
        return self.refusals[0].next_step if self.refusals else ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            **self.device.to_json(),
            "usable": self.usable,
            "reasons": [one.to_json() for one in self.refusals],
            "warnings": list(self.warnings),
            "adapter_state": self.adapter,
        }


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What a process here would use. `sentence` says what was chosen and why.

    `cpu` is whether it is the CPU; with no device and `cpu` false nothing may be used. `notes`
    are sentences about the box as a whole.
    """

    chosen: tuple[DeviceCandidate, ...]
    rejected: tuple[DeviceCandidate, ...]
    cpu: bool
    policy: Fallback
    sentence: str
    notes: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether what was chosen is what was wanted: a device, or the CPU where that is meant."""
        return bool(self.chosen) or (self.cpu and self.policy is Fallback.ALLOW)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "chosen": [one.device.id for one in self.chosen] or (["cpu"] if self.cpu else []),
            "cpu": self.cpu,
            "policy": self.policy.value,
            "sentence": self.sentence,
            "rejected": [
                {"id": one.device.id, **one.refusals[0].to_json()} for one in self.rejected
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class DeviceManager:
    """The devices of a box as facts tell of them, under the settings of this process.

    With `live` the facts are of this machine, and `records` (the registry's) decide too; on a
    report the facts alone do, and whether an adapter is installed here is only told. `outside`
    asks for the devices of a container that is not started yet: verdicts on this place (`PLACE`)
    are left out, and the facts are those that hold inside (`containers.image`). `said` is what the
    doctor read in the text of a report: verdicts by a device's id, or by an adapter's name.
    """

    facts: HostFacts
    settings: Settings
    records: Sequence[AdapterRecord] = ()
    live: bool = False
    outside: bool = False
    said: Mapping[str, Sequence[DeviceVerdict]] = field(default_factory=dict)
    inventory: Inventory = field(init=False)
    _recognised: tuple[RecognisedDevice, ...] = field(init=False, repr=False)
    _candidates: tuple[DeviceCandidate, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found = inventory(self.facts)
        extra = tuple(_of_records(self.records, found)) if self.live else ()
        whole = Inventory((*found.devices, *extra), found.notes)
        object.__setattr__(self, "inventory", whole)
        object.__setattr__(self, "_recognised", self._recognise())
        object.__setattr__(self, "_candidates", self._judge())

    @property
    def why_not_cpu(self) -> str:
        """Why flags for the CPU are no answer for this box; empty where they are one."""
        found = any(not one.integrated for one in self.inventory.devices)
        if found or box_vendor(self.facts) is not None:
            return "this box is for an accelerator, and none can be used"
        facts = self.facts
        told = self.live or facts.torch or facts.vllm or facts.cpu.model or not facts.report
        return "" if told else "nothing tells what this box has"

    def candidates(self) -> tuple[DeviceCandidate, ...]:
        """Every device, with the verdicts on it."""
        return self._candidates

    def recognised(self) -> tuple[RecognisedDevice, ...]:
        """The devices of installed adapters with their descriptors."""
        return self._recognised

    def _judge(self) -> tuple[DeviceCandidate, ...]:
        records = {r.name: r for r in self.records if r.status is not Status.SHADOWED}
        context = Context(
            self.facts,
            self.inventory,
            self.settings,
            records,
            self.live,
            {one.device.id: one.capability for one in self._recognised if one.capability},
            self.said,
        )
        candidates = []
        for device in self.inventory.devices:
            known = verdicts(device, context)
            if self.outside:
                known = tuple(one for one in known if one.subject not in PLACE)
            told = tuple(warnings(device, known))
            state = _adapter_state(device.vendor, records)
            candidates.append(DeviceCandidate(device, known, told, state))
        return tuple(candidates)

    def _recognise(self) -> tuple[RecognisedDevice, ...]:
        found: list[RecognisedDevice] = []
        for record in self.records:
            manifest = record.manifest
            if manifest is None or not self.inventory.of(record.name):
                continue
            try:
                found += recognise(manifest, self.facts, box=self.inventory)
            except VllmAdapterError:  # broken descriptors: `validate` and `list` say so
                continue
        return tuple(found)

    def choose(self) -> DeviceChoice:
        """The choice under VA_FALLBACK; see `DeviceChoice`."""
        candidates = self.candidates()
        notes = [*self.inventory.notes, *_order_notes(self.inventory)]
        notes += filtered_twice(self.inventory, self.facts)
        groups = _groups(one for one in candidates if one.usable)
        if not groups:
            return self._without_device(candidates, notes)
        best = max(groups, key=self._worth)  # of equal ones the first
        rejected = [one for one in candidates if not one.usable]
        for group in groups:
            if group is not best:
                rejected += [_not_used(one, best[0]) for one in group]
        why = _why(best, groups)
        if best[0].device.partition and limits_of(best[0].device.vendor).instances:
            rejected += [_another_instance(one, best[0]) for one in best[1:]]
            best = best[:1]
        notes += _torch_notes(best, self.facts)
        order = {one.device.id: i for i, one in enumerate(candidates)}
        rejected.sort(key=lambda one: order[one.device.id])
        return DeviceChoice(
            tuple(best),
            tuple(rejected),
            False,
            self.settings.fallback,
            _describe_choice(best) + why,
            tuple(notes),
        )

    def _worth(self, group: list[DeviceCandidate]) -> tuple[int, int, int]:
        """VA_ADAPTERS' order first; then memory, then the number of devices."""
        order, vendor = self.settings.adapters.order, group[0].device.vendor
        asked = -order.index(vendor) if vendor in order else -len(order)
        memory = sum(one.device.memory_total_bytes or 0 for one in group)
        return asked, memory, len(group)

    def _without_device(
        self, candidates: tuple[DeviceCandidate, ...], notes: list[str]
    ) -> DeviceChoice:
        adapters, policy = self.settings.adapters, self.settings.fallback
        named = "cpu" in adapters.order and adapters.order[0] == "cpu"
        emulated = {r.name for r in self.records if r.manifest and r.manifest.emulated}
        real = tuple(one for one in candidates if one.device.vendor not in emulated)
        why = _why_none(real, self.facts, self.live)
        denied = adapters.blocks("cpu")
        if named and not denied:
            said = "the CPU, which VA_ADAPTERS names first"
            return DeviceChoice((), candidates, True, Fallback.ALLOW, said, tuple(notes))
        if policy is Fallback.ERROR or denied:
            how = denied or "VA_FALLBACK=error refuses the CPU"
            said = f"nothing: {why}, and {how}"
            return DeviceChoice((), candidates, False, policy, said, tuple(notes))
        said = f"only the CPU: {why}"
        return DeviceChoice((), candidates, True, policy, said, tuple(notes))


def _of_records(records: Sequence[AdapterRecord], found: Inventory) -> Iterable[Device]:
    """Devices of adapters whose vendor the facts know nothing of, as their probe told."""
    for record in records:
        manifest = record.manifest
        served = manifest.device if manifest is not None else None
        if record.status is not Status.OK or served is None or served.torch_type == "cpu":
            continue
        if not found.of(record.name):
            for one in record.devices:
                said = (f"adapter {record.name} reports {one.torch}",)
                yield Device(record.name, one.index, name=one.name, arch=one.arch, evidence=said)


def _adapter_state(vendor: str, records: dict[str, AdapterRecord]) -> str:
    if vendor in records:
        return f"installed ({records[vendor].status_text})"
    return not_served(vendor)


def _groups(candidates: Iterable[DeviceCandidate]) -> list[list[DeviceCandidate]]:
    """Usable candidates of one vendor and kind each: one process can serve each group.

    What is not known of a device tells it from no other.
    """
    groups: list[list[DeviceCandidate]] = []
    for one in candidates:
        fitting = (g for g in groups if all(_same_kind(one.device, other.device) for other in g))
        group = next(fitting, None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    return groups


def _same_kind(one: Device, other: Device) -> bool:
    pairs = (
        (one.name, other.name),
        (one.pci_id, other.pci_id),
        (one.memory_total_bytes, other.memory_total_bytes),
        (one.arch, other.arch),
    )
    same = (one.vendor, one.partition) == (other.vendor, other.partition)
    return same and all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)


def _not_used(one: DeviceCandidate, best: DeviceCandidate) -> DeviceCandidate:
    device, chosen = one.device, best.device
    if device.vendor != chosen.vendor:
        why = f"another vendor's than the chosen {chosen.title}: one process serves one vendor"
    else:
        why = (
            f"another kind than the chosen {chosen.title}: what one of them can do is not what "
            "all can"
        )
    step = f"give it a role: --role main={chosen.id} --role light={device.id}"
    verdict = DeviceVerdict(Outcome.BY_NAME, "kind", "", why, next_step=step)
    return replace(one, verdicts=(verdict, *one.verdicts))


def _another_instance(one: DeviceCandidate, best: DeviceCandidate) -> DeviceCandidate:
    step = f"give it a role: --role main={best.device.id} --role light={one.device.id}"
    reason = "a CUDA process sees a single MIG instance"
    verdict = DeviceVerdict(Outcome.BY_NAME, "MIG", "", reason, next_step=step)
    return replace(one, verdicts=(verdict, *one.verdicts))


def _describe_choice(best: list[DeviceCandidate]) -> str:
    devices = [one.device for one in best]
    titles = dict.fromkeys(d.title for d in devices if d.name or d.pci_id)
    memory = next((d.memory_total_bytes for d in devices if d.memory_total_bytes), None)
    size = f" of {memory / GIB:.0f} GiB" if memory else ""
    shared = " of system memory" if devices[0].system_memory and memory else ""
    what = next(iter(titles), f"{devices[0].vendor_name} device")
    some = sum(1 for d in devices if d.name or d.pci_id)
    unsaid = f" ({len(best) - some} of them without a name)" if 0 < some < len(best) else ""
    return f"{len(best)} x {what}{size}{shared}{unsaid}"


def _why(best: list[DeviceCandidate], groups: list[list[DeviceCandidate]]) -> str:
    """Why this group of several."""
    if len(groups) < 2:
        return ""
    if any(one.device.memory_total_bytes for one in best):
        return ", the kind with the most memory in all"
    if len(best) > max(len(group) for group in groups if group is not best):
        return ", the kind of which there are most"
    return ", the first of several kinds; nothing reports their memory, so name one with --role"


def _torch_notes(chosen: Sequence[DeviceCandidate], facts: HostFacts) -> list[str]:
    """Where torch itself does not reach what was chosen."""
    torch = facts.torch
    row = VENDORS.get(chosen[0].device.vendor) if chosen else None
    if torch is None or row is None or row.build is None:
        return []
    if torch.local == "cpu":
        return ["torch is a build for the CPU: no device of this box is reached by it"]
    if torch.available is False:
        return [
            "torch says that no accelerator is available: see `vllm-adapter doctor` for the cause"
        ]
    return []


def _order_notes(found: Inventory) -> list[str]:
    notes = []
    for vendor, row in VENDORS.items():
        titles = {one.title for one in found.of(vendor) if one.name or one.pci_id}
        if row.limits.order and len(titles) > 1:
            name, value, counter = row.limits.order
            tool = (row.tool or "the tool").split()[0]
            notes.append(
                f"the {row.name} devices are not alike: {counter} counts the fastest first and "
                f"{tool} by bus address, until {name}={value}; what device 0 can do is not what "
                "all can"
            )
    return notes


def _why_none(candidates: tuple[DeviceCandidate, ...], facts: HostFacts, live: bool) -> str:
    if candidates:
        ids = ", ".join(one.device.id for one in candidates)
        return f"no device can be used ({ids})"
    place = facts.where("pci")
    if live and place:
        return f"no accelerator is seen, and {place} cannot be read"
    if live or facts.pci:
        return "there is no accelerator"
    return (
        f"the report names no accelerator, {_by_software(facts)}which proves nothing without a "
        "list of the box's devices (`lspci -nn`, or the vendor's tool)"
    )


def _by_software(facts: HostFacts) -> str:
    """Whose box it is, where software alone tells."""
    found = box_vendor(facts)
    row = VENDORS.get(found.name) if found else None
    if found is None or row is None:
        return ""
    tool = f"; add the output of `{row.tool}`" if row.tool else ""
    return f"and its software is {row.name}'s ({found.evidence}){tool}, "


def torch_type_of(vendor: str) -> str | None:
    """Torch's device type of an adapter's devices; None where it is not known."""
    row = VENDORS.get(vendor)
    return row.torch_type if row else None
