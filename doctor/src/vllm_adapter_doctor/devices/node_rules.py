"""What a device's nodes mean: not passed through, not to be opened, or made at first use.

Only facts of a machine list all nodes: a report tells of some, and of these alone it is known
whether this user may open them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.facts import DeviceNode, HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS, Vendor
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.verdict import DeviceVerdict, Outcome

ABSENT: Final = "VA1401"
SHUT: Final = "VA1402"
_RENDER: Final = "/dev/dri/renderD"


def on_wsl(facts: HostFacts) -> bool:
    """Whether the box is Windows' subsystem for Linux: devices are reached through Windows."""
    kernel, hints = (facts.os.release or "").lower(), facts.os.environment
    return "microsoft-standard" in kernel or any(hint.startswith("wsl") for hint in hints)


def node_verdicts(
    device: Device, siblings: Sequence[Device], facts: HostFacts, *, live: bool
) -> Iterator[DeviceVerdict]:
    """What of a device's nodes stops it. `siblings` are all devices of its vendor.

    `live` is whether the facts are of this machine now: no node at all then means that there is
    none, and not that nobody looked.
    """
    row = VENDORS.get(device.vendor)
    if row is None or on_wsl(facts):
        return
    listed = not facts.report and (facts.nodes or live)
    refusal = _missing(row, device, siblings, facts.nodes) if listed else None
    if refusal is None:
        refusal = _shut(row, device, facts.nodes)
    if refusal is not None:
        yield refusal
    if not facts.report:
        paths = {node.path for node in facts.nodes}
        for path, beside, warning in row.made_late:
            if beside in paths and path not in paths:
                yield DeviceVerdict(Outcome.NOTE, "nodes", "", warning)


def _missing(
    row: Vendor, device: Device, siblings: Sequence[Device], nodes: Sequence[DeviceNode]
) -> DeviceVerdict | None:
    paths, late = {node.path for node in nodes}, {path for path, _, _ in row.made_late}
    numbered = numbered_nodes(row, nodes)
    missing = [path for path in row.control if path not in paths and path not in late]
    if row.render and not any(path.startswith(_RENDER) for path in paths):
        missing.append(f"{_RENDER}*")
    if row.numbered and not device.nodes and not _is_reachable(row, device, siblings, numbered):
        missing.append(row.numbered[0].format(n="*"))
    if not missing:
        return None
    reported = any(one.physical is not None for one in siblings)
    if row.own_numbers and numbered and not reported and len(missing) == 1:
        return DeviceVerdict(
            Outcome.REFUSE,
            "nodes",
            "",
            f"{len(numbered)} of the host's devices are passed through, and nothing says which",
            next_step=f"run `{row.tool}`, or `vllm-adapter devices` where that tool is",
        )
    return DeviceVerdict(
        Outcome.REFUSE,
        "nodes",
        ABSENT,
        f"present on the host, but {', '.join(missing)} does not exist here: "
        "not passed through, or its driver is not loaded",
        next_step="start the container with the flags of `vllm-adapter container`",
        evidence=(
            Evidence(device.evidence[-1] if device.evidence else device.title, "host facts"),
            Evidence(f"no {', no '.join(missing)}", "/dev"),
        ),
    )


def _shut(row: Vendor, device: Device, nodes: Sequence[DeviceNode]) -> DeviceVerdict | None:
    paths = {node.path: node for node in nodes}
    numbered = numbered_nodes(row, nodes) if row.own_numbers else []
    render = [node for node in nodes if node.path.startswith(_RENDER)] if row.render else []
    own = [*device.nodes, *(paths[path] for path in row.control if path in paths)]
    # of nodes that cannot be told apart, one that opens will do
    shut = [*shut_nodes(own), *(one[0] for one in (numbered, render) if one and _all_shut(one))]
    if not shut:
        return None
    group = "" if shut[0].group is None else f" {shut[0].group}"
    return DeviceVerdict(
        Outcome.REFUSE,
        "nodes",
        SHUT,
        f"{shut[0].path} may not be opened by this user",
        shut[0].path,
        next_step=f"join the node's group{group}, or start the container with "
        f"--group-add{group or ' GID'}",
        evidence=tuple(Evidence(f"{node.path} may not be opened", "/dev") for node in shut),
    )


def shut_nodes(nodes: Iterable[DeviceNode]) -> list[DeviceNode]:
    """Those that this user may not open."""
    return [node for node in nodes if not (node.readable and node.writable)]


def _all_shut(nodes: Sequence[DeviceNode]) -> bool:
    return len(shut_nodes(nodes)) == len(nodes)


def numbered_nodes(row: Vendor, nodes: Iterable[DeviceNode]) -> list[DeviceNode]:
    """All numbered nodes of a vendor that are here."""
    forms = [re.escape(one).replace(r"\{n\}", r"\d+") for one in (*row.numbered, *row.older)]
    form = re.compile("|".join(forms))
    return [node for node in nodes if form.fullmatch(node.path)]


def _is_reachable(
    row: Vendor, device: Device, siblings: Sequence[Device], here: Sequence[DeviceNode]
) -> bool:
    """Whether its node is here under a number that is not the one we know.

    A driver's minor number need not be the tool's; a tool that sees the device here has opened it.
    """
    return bool(here) and (
        device.physical is not None or len(here) >= len(siblings) * len(row.numbered)
    )
