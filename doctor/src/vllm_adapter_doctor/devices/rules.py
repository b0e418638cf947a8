"""The verdicts on a device, rule by rule in order: the one list that everybody reads.

A device is chosen when nothing in it stops it. `devices`, `container`, `serve` and `run` read it
here, and the doctor makes findings of the same rules. A refusal holds even where a device is asked
for by name; `BY_NAME` only keeps it from being chosen on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.discovery.records import AdapterRecord, Status
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS, how_to_serve
from vllm_adapter.settings import Settings
from vllm_adapter_doctor.devices.box_device import Device, Inventory
from vllm_adapter_doctor.devices.build_rules import code_verdicts
from vllm_adapter_doctor.devices.driver_rules import driver_verdicts
from vllm_adapter_doctor.devices.dtype_rules import without_bfloat16
from vllm_adapter_doctor.devices.health_rules import health_verdicts
from vllm_adapter_doctor.devices.node_rules import node_verdicts
from vllm_adapter_doctor.devices.verdict import DeviceVerdict, Outcome
from vllm_adapter_doctor.devices.visible import hidden_by

GIB: Final = 1 << 30
_IN_USE: Final = 0.3
"""The share of a device's memory in use that is said of it."""
_SMALL_SHARE: Final = 4
"""A GPU with less than a quarter of its largest sibling's memory drives a display."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the rules look at. `live` is whether the facts are of this machine, now.

    `capabilities` are the descriptors by the devices' ids, `said` what the doctor read in the
    text: verdicts by a device's id, or by its adapter's name.
    """

    facts: HostFacts
    inventory: Inventory
    settings: Settings
    records: Mapping[str, AdapterRecord] = field(default_factory=dict)
    live: bool = False
    capabilities: Mapping[str, Capability] = field(default_factory=dict)
    said: Mapping[str, Sequence[DeviceVerdict]] = field(default_factory=dict)

    def is_emulated(self, device: Device) -> bool:
        """Whether its adapter's manifest says so."""
        record = self.records.get(device.vendor)
        return bool(record and record.manifest and record.manifest.emulated)


def verdicts(device: Device, context: Context) -> tuple[DeviceVerdict, ...]:
    """Every verdict that says something, the most fundamental first; unknown and OK are left out.

    Of one reason told twice, the first counts; and what the doctor read is left out where the
    facts themselves say it.
    """
    found: dict[str, DeviceVerdict] = {}
    for rule in _RULES:
        for one in rule(device, context):
            twice = rule is _findings_of_report and any(
                known.stops and one.code == known.code for known in found.values()
            )
            if one.outcome not in (Outcome.OK, Outcome.UNKNOWN) and not twice:
                found.setdefault(one.reason, one)
    return tuple(found.values())


def warnings(device: Device, known: Sequence[DeviceVerdict]) -> list[str]:
    """What should be known of a device that is used all the same, out of the verdicts on it."""
    noted = [one for one in known if one.outcome is Outcome.NOTE]
    found = [one.reason for one in noted if one.subject == "nodes"]
    if device.system_memory:
        found.append("its memory is the system's own: what the CPU uses is missing there")
    used, total = device.memory_used_bytes or 0, device.memory_total_bytes or 0
    if total and used > total * _IN_USE and not (device.reported and device.reported.processes):
        found.append(f"{used / GIB:.0f} of its {total / GIB:.0f} GiB are in use already")
    if device.reported:
        for process in device.reported.processes:
            size = f" {process.memory_bytes / GIB:.1f} GiB" if process.memory_bytes else " memory"
            who = f"process {process.pid}" if process.pid is not None else "a process"
            name = f" ({process.name})" if process.name else ""
            found.append(f"{who}{name} holds{size} of it")
    return [*found, *(one.reason for one in noted if one.subject == "health")]


def _denied(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    why = context.settings.adapters.blocks(device.vendor)
    if why:
        step = f"set VA_ADAPTERS so that it admits {device.vendor}"
        yield _refuse("settings", why, step)


def _emulated(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    if context.is_emulated(device) and device.vendor not in context.settings.adapters.allowed:
        yield _by_name(
            "emulated",
            "emulated in software, and never taken for the accelerator unless asked",
            f"ask for it by name: VA_ADAPTERS={device.vendor}, or --role main={device.id}",
        )


def _other_type(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    wanted, row = context.settings.require_device, VENDORS.get(device.vendor)
    if wanted and row is not None and row.torch_type not in (None, wanted):
        yield _refuse(
            "settings",
            f"VA_REQUIRE_DEVICE asks for {wanted}, and this is {row.torch_type}",
            "unset VA_REQUIRE_DEVICE, or name this type",
        )


def _hidden(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    variable = hidden_by(device, context.inventory.of(device.vendor), context.facts)
    if variable is not None:
        yield _by_name(
            "visible devices",
            f"{variable}={context.facts.variable(variable)} hides it",
            f"unset {variable}, or add this device to it",
        )


def _tool(device: Device) -> str:
    row = VENDORS.get(device.vendor)
    return (row.tool if row else None) or "the vendor's tool"


def _health(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    del context
    yield from health_verdicts(device.reported, _tool(device))


def _integrated(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    if device.integrated:
        size = context.facts.memory.total_bytes
        of = f" ({size / GIB:.0f} GiB)" if size else ""
        yield _by_name(
            "integrated",
            f"an integrated GPU: its memory is system memory{of}, and it is not taken for the "
            "accelerator unless asked",
            f"ask for it by name: --role main={device.id}",
        )


def _empty_mig(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    del context
    if device.partition == "MIG":  # an instance has its profile's name there
        yield _refuse(
            "MIG",
            "MIG mode is on but the report names no MIG instance: the whole GPU runs nothing",
            "list the instances with `nvidia-smi -L`, or make one with `nvidia-smi mig -cgi`",
            "VA1606",
        )


def _capability(device: Device, context: Context) -> Capability | None:
    return context.capabilities.get(device.id)


def _build(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    known = _capability(device, context)
    arch = device.arch or (known.identity.arch if known else None)
    yield from code_verdicts(arch, context.facts, device.vendor)


def _driver(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    yield from driver_verdicts(device.vendor, context.facts, _capability(device, context))


def _bfloat16(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    yield from without_bfloat16(device, _capability(device, context))


def _findings_of_report(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    """What the doctor read in the text of a report."""
    yield from context.said.get(device.id, ())
    yield from context.said.get(device.vendor, ())


def _no_node(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    siblings = context.inventory.of(device.vendor)
    yield from node_verdicts(device, siblings, context.facts, live=context.live)


def _no_adapter(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    if not context.live:
        return
    record = context.records.get(device.vendor)
    if record is None:
        yield _refuse("adapter", "no adapter for it is installed", how_to_serve(device.vendor))
    elif record.status not in (None, Status.OK):
        yield _refuse(
            "adapter",
            f"its adapter is {record.status_text}: {record.reason}",
            record.next_step or "vllm-adapter list --probe",
            "VA0401" if record.status in (Status.BROKEN, Status.INCOMPATIBLE) else "",
        )


def _display(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    siblings = context.inventory.of(device.vendor)
    if is_display_only(device, siblings):
        mine, most = device.memory_total_bytes or 0, _most_memory(siblings)
        yield _by_name(
            "display",
            f"with {mine / GIB:.0f} GiB beside one of {most / GIB:.0f} GiB it is taken for the "
            "display's GPU",
            f"ask for it by name: --role light={device.id}",
        )


def _most_memory(siblings: Iterable[Device]) -> int:
    sizes = (
        other.memory_total_bytes or 0
        for other in siblings
        if not other.integrated and not other.partition
    )
    return max(sizes, default=0)


def is_display_only(device: Device, siblings: Iterable[Device]) -> bool:
    """Whether a device is one for displays beside those that compute, by its memory."""
    mine = device.memory_total_bytes
    most = _most_memory(one for one in siblings if one.vendor == device.vendor)
    return bool(mine and not device.partition and mine * _SMALL_SHARE <= most)


def _refuse(subject: str, reason: str, next_step: str, code: str = "") -> DeviceVerdict:
    return DeviceVerdict(Outcome.REFUSE, subject, code, reason, next_step=next_step)


def _by_name(subject: str, reason: str, next_step: str) -> DeviceVerdict:
    return DeviceVerdict(Outcome.BY_NAME, subject, "", reason, next_step=next_step)


_RULES: Final[tuple[Callable[[Device, Context], Iterable[DeviceVerdict]], ...]] = (
    _denied,
    _emulated,
    _other_type,
    _health,
    _empty_mig,
    _no_node,
    _build,
    _driver,
    _findings_of_report,
    _hidden,
    _integrated,
    _display,
    _no_adapter,
    _bfloat16,
)
