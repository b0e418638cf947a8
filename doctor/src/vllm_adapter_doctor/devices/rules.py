"""The verdicts on a device, rule by rule in order: the one list that everybody reads.

A device is chosen when nothing in it stops it. `devices`, `container`, `serve` and `run` read it
here, and the doctor makes findings of the same rules. A refusal holds even where a device is asked
for by name; `BY_NAME` only keeps it from being chosen on its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.discovery.records import AdapterRecord, Status
from vllm_adapter.hostfacts.facts import DeviceNode, HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS, how_to_serve
from vllm_adapter.settings import Settings
from vllm_adapter_doctor.devices.box_device import Device, Inventory
from vllm_adapter_doctor.devices.build_rules import code_verdicts
from vllm_adapter_doctor.devices.driver_rules import driver_verdicts
from vllm_adapter_doctor.devices.health_rules import health_verdicts
from vllm_adapter_doctor.devices.verdict import DeviceVerdict, Outcome
from vllm_adapter_doctor.devices.visible import hidden_by

GIB: Final = 1 << 30
_SMALL_SHARE: Final = 4
"""A GPU with less than a quarter of its largest sibling's memory drives a display."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the rules look at. `live` is whether the facts are of this machine, now.

    `outside` is for a container that is not started yet: nodes and adapters here say nothing, and
    neither does this machine's torch. `capabilities` are the descriptors by the devices' ids,
    `said` what the doctor read in the text: verdicts by a device's id, or by its adapter's name.
    """

    facts: HostFacts
    inventory: Inventory
    settings: Settings
    records: Mapping[str, AdapterRecord] = field(default_factory=dict)
    live: bool = False
    outside: bool = False
    capabilities: Mapping[str, Capability] = field(default_factory=dict)
    said: Mapping[str, Sequence[DeviceVerdict]] = field(default_factory=dict)

    @property
    def wsl(self) -> bool:
        """Whether the devices are reached through Windows."""
        return on_wsl(self.facts)

    def is_emulated(self, device: Device) -> bool:
        """Whether its adapter's manifest says so."""
        record = self.records.get(device.vendor)
        return bool(record and record.manifest and record.manifest.emulated)


def on_wsl(facts: HostFacts) -> bool:
    """Whether the box is Windows' subsystem for Linux."""
    kernel, hints = (facts.os.release or "").lower(), facts.os.environment
    return "microsoft-standard" in kernel or any(hint.startswith("wsl") for hint in hints)


def verdicts(device: Device, context: Context) -> tuple[DeviceVerdict, ...]:
    """Every verdict that says something, the most fundamental first; unknown and OK are left out.

    Of one reason told twice, the first counts; and what the doctor read is left out where the
    facts themselves say it.
    """
    silent = set(_OF_THE_PLACE) if context.outside else set()
    if context.outside and context.live:
        silent |= {_build, _driver}  # the image has a torch of its own
    found: dict[str, DeviceVerdict] = {}
    for rule in _RULES:
        if rule in silent:
            continue
        for one in rule(device, context):
            twice = rule is _findings_of_report and any(
                known.stops and one.code == known.code for known in found.values()
            )
            if one.outcome not in (Outcome.OK, Outcome.UNKNOWN) and not twice:
                found.setdefault(one.reason, one)
    return tuple(found.values())


def warnings(device: Device, context: Context) -> list[str]:
    """What should be known of a device that is used all the same."""
    found = []
    paths = {node.path for node in context.facts.nodes}
    row = VENDORS.get(device.vendor)
    if row and not (context.facts.report or context.outside):
        found += [
            warning
            for path, beside, warning in row.made_late
            if beside in paths and path not in paths
        ]
    if device.system_memory:
        found.append("its memory is the system's own: what the CPU uses is missing there")
    if device.reported:
        for process in device.reported.processes:
            size = f" {process.memory_bytes / GIB:.1f} GiB" if process.memory_bytes else " memory"
            who = f"process {process.pid}" if process.pid is not None else "a process"
            name = f" ({process.name})" if process.name else ""
            found.append(f"{who}{name} holds{size} of it")
        said = health_verdicts(device.reported, _tool(device))
        found += [one.reason for one in said if not one.stops]
    return found


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
    yield from (one for one in health_verdicts(device.reported, _tool(device)) if one.stops)


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


def _findings_of_report(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    """What the doctor read in the text of a report."""
    for one in (*context.said.get(device.id, ()), *context.said.get(device.vendor, ())):
        here = one.subject in OF_THE_PLACE or (context.live and one.subject in _OF_TORCH)
        if not (context.outside and here):
            yield one


def _no_node(device: Device, context: Context) -> Iterator[DeviceVerdict]:
    """Only facts of a machine list all nodes: a report tells of some."""
    row, nodes = VENDORS.get(device.vendor), context.facts.nodes
    if row is None or context.wsl:
        return
    paths = {node.path: node for node in nodes}
    render = [node for node in nodes if node.path.startswith("/dev/dri/renderD")]
    own = [*device.nodes, *(paths[path] for path in row.control if path in paths)]
    through = "start the container with the flags of `vllm-adapter container`"
    if not context.facts.report and (nodes or context.live):
        late = {path for path, _, _ in row.made_late}
        missing = [path for path in row.control if path not in paths and path not in late]
        if row.render and not render:
            missing.append("/dev/dri/renderD*")
        if row.numbered and not device.nodes and not _reachable(device, context):
            missing.append(row.numbered[0].format(n="*"))
        some = _numbered_nodes(device, context) if row.own_numbers else []
        reported = any(one.physical is not None for one in context.inventory.of(device.vendor))
        if some and not reported and len(missing) == 1:
            yield _refuse(
                "nodes",
                f"{len(some)} of the host's devices are passed through, and nothing says which",
                f"run `{row.tool}`, or `vllm-adapter devices` where that tool is",
            )
            return
        if missing:
            yield _refuse(
                "nodes",
                f"present on the host, but {', '.join(missing)} does not exist here: "
                "not passed through, or its driver is not loaded",
                through,
                "VA1401",
            )
            return
    if row.own_numbers and all(
        map(_is_inaccessible, numbered := _numbered_nodes(device, context))
    ):
        own += numbered[:1]
    shut = [node for node in own if _is_inaccessible(node)]
    if row.render and render and all(map(_is_inaccessible, render)):
        shut += render[:1]
    if shut:
        group = "" if shut[0].group is None else f" {shut[0].group}"
        yield _refuse(
            "nodes",
            f"{shut[0].path} may not be opened by this user",
            f"join the node's group{group}, or start the container with "
            f"--group-add{group or ' GID'}",
            "VA1402",
        )


def _is_inaccessible(node: DeviceNode) -> bool:
    return not (node.readable and node.writable)


def _numbered_nodes(device: Device, context: Context) -> list[DeviceNode]:
    """All numbered nodes of the device's vendor that are here."""
    row = VENDORS[device.vendor]
    forms = [re.escape(one).replace(r"\{n\}", r"\d+") for one in (*row.numbered, *row.older)]
    form = re.compile("|".join(forms))
    return [node for node in context.facts.nodes if form.fullmatch(node.path)]


def _reachable(device: Device, context: Context) -> bool:
    """Whether its node is here under a number that is not the one we know.

    A driver's minor number need not be the tool's; a tool that sees the device here has opened it.
    """
    row, here = VENDORS[device.vendor], _numbered_nodes(device, context)
    siblings = len(context.inventory.of(device.vendor)) * len(row.numbered)
    return bool(here) and (device.physical is not None or len(here) >= siblings)


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


OF_THE_PLACE: Final = frozenset({"nodes", "adapter", "container"})
"""Subjects of verdicts on where a program runs: a container that is not started yet has none."""
_OF_TORCH: Final = frozenset({"build", "driver"})
_OF_THE_PLACE: Final = (_no_node, _no_adapter)
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
)
