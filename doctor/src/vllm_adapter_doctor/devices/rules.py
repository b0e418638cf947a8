"""Why a device of the inventory is not used: each rule gives a reason and the next step.

`hard` rules hold even where a device is asked for by name; the others only keep it from being
chosen on its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from vllm_adapter.discovery.records import AdapterRecord, Status
from vllm_adapter.hostfacts.facts import DeviceNode, HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS, how_to_serve
from vllm_adapter.settings import Settings
from vllm_adapter_doctor.devices.box_device import Device, Inventory
from vllm_adapter_doctor.devices.visible import hidden_by
from vllm_adapter_doctor.vendor_data.driver_tables import DRIVER_FLOORS

GIB: Final = 1 << 30
_BAD_STATUS: Final = frozenset(
    "alarm critical error err failed lost unhealthy unusable offline fault dead".split()
)
_LOST: Final = re.compile(
    r"(?i)\blost\b|not usable|unusable|fallen off|failed to init|is missing|needs? (?:a )?reset"
)
_LEAST_BRANCH: Final = 100
"""A driver with a smaller number counts otherwise than by branches."""
_SMALL_SHARE: Final = 4
"""A GPU with less than a quarter of its largest sibling's memory drives a display."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, in one sentence, and what to do about it."""

    reason: str
    next_step: str = ""
    hard: bool = True


@dataclass(frozen=True, slots=True)
class Context:
    """What the rules look at. `live` is whether the facts are of this machine, now.

    `outside` is for a container that is not started yet: nodes and adapters here say nothing.
    """

    facts: HostFacts
    inventory: Inventory
    settings: Settings
    records: Mapping[str, AdapterRecord] = field(default_factory=dict)
    live: bool = False
    outside: bool = False

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


def refusals(device: Device, context: Context) -> list[Refusal]:
    """Every reason against the device, the most fundamental first; empty for a usable one."""
    rules = [r for r in _RULES if not (context.outside and r in (_no_node, _no_adapter))]
    return [found for rule in rules if (found := rule(device, context)) is not None]


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
    if device.told:
        for process in device.told.processes:
            size = f" {process.memory_bytes / GIB:.1f} GiB" if process.memory_bytes else " memory"
            who = f"process {process.pid}" if process.pid is not None else "a process"
            name = f" ({process.name})" if process.name else ""
            found.append(f"{who}{name} holds{size} of it")
        status = device.told.health.status
        if status and status.lower() == "warning":
            found.append("its tool says: Warning")
        found += [error for error in device.told.health.errors if not _LOST.search(error)]
    return found


def _denied(device: Device, context: Context) -> Refusal | None:
    why = context.settings.adapters.blocks(device.vendor)
    return Refusal(why, f"set VA_ADAPTERS so that it admits {device.vendor}") if why else None


def _emulated(device: Device, context: Context) -> Refusal | None:
    if not context.is_emulated(device) or device.vendor in context.settings.adapters.allowed:
        return None
    return Refusal(
        "emulated in software, and never taken for the accelerator unless asked",
        f"ask for it by name: VA_ADAPTERS={device.vendor}, or --role main={device.id}",
        hard=False,
    )


def _other_type(device: Device, context: Context) -> Refusal | None:
    wanted, row = context.settings.require_device, VENDORS.get(device.vendor)
    if not wanted or row is None or row.torch_type in (None, wanted):
        return None
    return Refusal(
        f"VA_REQUIRE_DEVICE asks for {wanted}, and this is {row.torch_type}",
        "unset VA_REQUIRE_DEVICE, or name this type",
    )


def _hidden(device: Device, context: Context) -> Refusal | None:
    variable = hidden_by(device, context.inventory.of(device.vendor), context.facts)
    if variable is None:
        return None
    value = context.facts.variable(variable)
    return Refusal(
        f"{variable}={value} hides it", f"unset {variable}, or add this device to it", hard=False
    )


def _unhealthy(device: Device, context: Context) -> Refusal | None:
    del context
    if device.told is None:
        return None
    health, row = device.told.health, VENDORS.get(device.vendor)
    tool = (row.tool if row else None) or "the vendor's tool"
    step = f"look at the kernel log and `{tool}`; reset the device or reboot"
    status = health.status or ""
    if status.lower() in _BAD_STATUS or _LOST.search(status):
        first = f": {health.errors[0]}" if health.errors else ""
        return Refusal(f"its health is {status}{first}", step)
    for error in health.errors:
        if _LOST.search(error):
            return Refusal(f"it cannot be used: {error}", step)
    return None


def _integrated(device: Device, context: Context) -> Refusal | None:
    if not device.integrated:
        return None
    size = context.facts.memory.total_bytes
    of = f" ({size / GIB:.0f} GiB)" if size else ""
    return Refusal(
        f"an integrated GPU: its memory is system memory{of}, and it is not taken for the "
        "accelerator unless asked",
        f"ask for it by name: --role main={device.id}",
        hard=False,
    )


def _empty_mig(device: Device, context: Context) -> Refusal | None:
    del context
    if device.partition != "MIG":  # an instance has its profile's name there
        return None
    return Refusal(
        "MIG is on, and no instance of it is told of: the whole GPU runs nothing",
        "list the instances with `nvidia-smi -L`, or make one with `nvidia-smi mig -cgi`",
    )


def _old_arch(device: Device, context: Context) -> Refusal | None:
    torch, arch = context.facts.torch, (device.arch or "").split(":")[0]
    archs = torch.archs if torch else ()
    row = VENDORS.get(device.vendor)
    if row and row.code == "sm" and (number := _sm(arch)) is not None:
        if number < row.code_floor:
            return Refusal(
                f"no torch build that we serve has code for {arch}", "use a newer GPU, or the CPU"
            )
        built = [one for one in map(_sm, archs) if one is not None]
        ptx = [_sm(one.replace("compute_", "sm_")) for one in archs if "compute_" in one]
        runs = any(number // 10 == one // 10 and number >= one for one in built)
        if built and not runs and not any(p is not None and p <= number for p in ptx):
            return Refusal(
                f"torch was built for {', '.join(archs)}, and this is {arch}",
                f"install a torch build with {arch}",
            )
    if row and row.code == "gfx" and arch.startswith("gfx"):
        built_for = [one.split(":")[0] for one in archs if one.startswith("gfx")]
        if built_for and arch not in built_for:
            return Refusal(
                f"torch was built for {', '.join(built_for)}, and this is {arch}",
                f"install a torch build with {arch}",
            )
    return None


def _old_driver(device: Device, context: Context) -> Refusal | None:
    floor = DRIVER_FLOORS.get(device.vendor)
    driver = context.facts.driver(floor.component) if floor else None
    if floor is None or driver is None or context.wsl:
        return None
    major = driver.version.split(".")[0]
    if not major.isdigit() or not _LEAST_BRANCH <= int(major) < floor.branch:
        return None
    return Refusal(
        f"the {device.vendor_name} driver {driver.version} serves no {floor.runtime} runtime that "
        f"torch is built with (from {floor.branch} on)",
        floor.next_step,
    )


def _sm(arch: str) -> int | None:
    found = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    return int(found[1]) if found else None


def _no_node(device: Device, context: Context) -> Refusal | None:
    """Only facts of a machine list all nodes: a report tells of some."""
    row, nodes = VENDORS.get(device.vendor), context.facts.nodes
    if row is None or context.wsl:
        return None
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
        told = any(one.physical is not None for one in context.inventory.of(device.vendor))
        if some and not told and len(missing) == 1:
            return Refusal(
                f"{len(some)} of the host's devices are passed through, and nothing tells which",
                f"run `{row.tool}`, or `vllm-adapter devices` where that tool is",
            )
        if missing:
            return Refusal(
                f"present on the host, but {', '.join(missing)} is not here: not passed through, "
                "or its driver is not loaded",
                through,
            )
    if row.own_numbers and all(map(_shut, numbered := _numbered_nodes(device, context))):
        own += numbered[:1]
    shut = [node for node in own if _shut(node)]
    if row.render and render and all(map(_shut, render)):
        shut += render[:1]
    if not shut:
        return None
    group = "" if shut[0].group is None else f" {shut[0].group}"
    return Refusal(
        f"{shut[0].path} may not be opened by this user",
        f"join the node's group{group}, or start the container with --group-add{group or ' GID'}",
    )


def _shut(node: DeviceNode) -> bool:
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


def _no_adapter(device: Device, context: Context) -> Refusal | None:
    if not context.live:
        return None
    record = context.records.get(device.vendor)
    if record is None:
        return Refusal("no adapter for it is installed", how_to_serve(device.vendor))
    if record.status in (None, Status.OK):
        return None
    return Refusal(
        f"its adapter is {record.status_text}: {record.reason}",
        record.next_step or "vllm-adapter list --probe",
    )


def _display(device: Device, context: Context) -> Refusal | None:
    sizes = [
        other.memory_total_bytes
        for other in context.inventory.of(device.vendor)
        if other.memory_total_bytes and not other.integrated and not other.partition
    ]
    mine = device.memory_total_bytes
    if not sizes or not mine or device.partition or mine * _SMALL_SHARE > max(sizes):
        return None
    return Refusal(
        f"with {mine / GIB:.0f} GiB beside one of {max(sizes) / GIB:.0f} GiB it is taken for the "
        "display's GPU",
        f"ask for it by name: --role light={device.id}",
        hard=False,
    )


_RULES: Final[tuple[Callable[[Device, Context], Refusal | None], ...]] = (
    _denied,
    _emulated,
    _other_type,
    _unhealthy,
    _empty_mig,
    _no_node,
    _old_arch,
    _old_driver,
    _hidden,
    _integrated,
    _display,
    _no_adapter,
)
