"""The topology of a host, for any vendor: from the links and devices that its facts hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, LinkMatrix
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter_doctor.devices.box_device import Device, Inventory
from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.report.parsers._common import normal_bdf
from vllm_adapter_doctor.topology.advice import advice
from vllm_adapter_doctor.topology.groups import domains, islands
from vllm_adapter_doctor.topology.link_faults import problems
from vllm_adapter_doctor.topology.link_kind import UNKNOWN, LinkClass, LinkKind, classify
from vllm_adapter_doctor.topology.numa_map import numa_maps, span
from vllm_adapter_doctor.topology.place import NumaPlacement, is_wsl, locate
from vllm_adapter_doctor.topology.types import Nic, Pair, TopoDevice, Topology

_DIE: Final = re.compile(r"\d+/(\d+)$")

Cells = dict[tuple[str, str], tuple[LinkClass, int | None]]
"""(link, bandwidth in MB/s) by the labels of the two devices."""


def build(facts: HostFacts) -> Topology:
    """The topology; without a device in the facts it is empty. Pure, never raises."""
    matrices = [matrix for matrix in facts.links if matrix.kind == "links"]
    listed = inventory(facts)
    box = _usable(listed)
    vendors = dict.fromkeys(
        [matrix.vendor for matrix in facts.links] + [device.vendor for device in box]
    )
    devices: list[TopoDevice] = []
    places: dict[str, NumaPlacement] = {}
    cells: Cells = {}
    nics: list[Nic] = []
    notes: list[str] = []
    for vendor in vendors:
        tables = [matrix for matrix in matrices if matrix.vendor == vendor]
        peers = [m for m in facts.links if m.vendor == vendor and m.kind != "links"]
        rows = _rows(vendor, (tables or peers)[:1], box, prefix=len(vendors) > 1)
        siblings = [row.reported for row in rows]
        cut = [row.label for row in rows if row.reported.cpus_truncated]
        if cut:
            notes.append(f"the CPU affinity of {span(cut)} is cut in the text: it is not used")
        for row in rows:
            places[row.label] = locate(row.reported, siblings, facts)
            devices.append(
                TopoDevice(row.label, row.device, row.reported.index, places[row.label])
            )
        for table in tables:
            notes += table.notes
            notes += _enter(table, rows, cells, wsl=is_wsl(facts))
        if tables:
            nics += _nics(tables[0], rows)
    labels = [device.label for device in devices]
    pairs, more = _pairs(labels, cells)
    groups = domains(labels, pairs)
    topology = Topology(
        tuple(devices),
        pairs,
        groups,
        islands(devices, pairs),
        tuple(nics),
        problems(devices, pairs, groups),
        tuple(
            dict.fromkeys((*listed.notes, *notes, *more, *_notes(devices, places, pairs, facts)))
        ),
        maps=numa_maps(devices, facts, several_nodes=_several_nodes(devices, nics, facts)),
    )
    return replace(topology, advice=advice(topology, facts.links))


def _usable(listed: Inventory) -> list[Device]:
    """The box's devices; integrated ones only where there is nothing else."""
    found = [device for device in listed.devices if device.integrated is not True]
    return found or list(listed.devices)


class _Row(NamedTuple):
    """Our label of a device, the tool's label, what the tool told with its number, the device."""

    label: str
    name: str
    reported: Accelerator
    device: Device


def _rows(
    vendor: str,
    tables: Sequence[LinkMatrix],
    box: Sequence[Device],
    *,
    prefix: bool,
) -> list[_Row]:
    """Each device of one vendor.

    A table of links counts the devices where there is one, else the inventory does.
    """
    own = [device for device in box if device.vendor == vendor]
    word = VENDORS[vendor].label if vendor in VENDORS else "GPU"
    start = f"{vendor} " if prefix else ""
    if not tables:
        return [_Row(f"{start}{word}{one.index}", "", _reported(one), one) for one in own]
    table = tables[0]
    names = [name.replace(" ", "") for name in table.devices]
    if all(name.endswith("/0") for name in names):
        names = [name.removesuffix("/0") for name in names]  # cards of one tile
    rows = []
    for name, short, index in zip(table.devices, names, table.indices, strict=False):
        device = _known(name, index, own) or Device(vendor, index)
        reported = _reported(device, table.source)
        shown = f"{word}{index}" if ":" in name else short
        rows.append(_Row(start + shown, name, replace(reported, index=index), device))
    return rows


def _reported(device: Device, source: str = "PCI") -> Accelerator:
    """What its tool reported of it, with what the inventory joined to that."""
    reported = device.reported or Accelerator(device.vendor, device.index, source)
    return replace(
        reported,
        index=device.index,
        name=device.name or reported.name,
        bdf=device.bdf,
        uuid=device.uuid,
    )


def _known(name: str, index: int, box: Sequence[Device]) -> Device | None:
    if ":" in name:
        return next((one for one in box if one.bdf == normal_bdf(name)), None)
    found = [one for one in box if one.physical == index]
    die = _DIE.search(name)
    if die and len(found) > 1:
        found = [one for one in found if one.die == int(die[1])]
    return found[0] if found else None


def _enter(table: LinkMatrix, rows: Sequence[_Row], cells: Cells, *, wsl: bool) -> Iterator[str]:
    """Adds a table's cells to those of earlier ones; says where they contradict each other."""
    by_name = {row.name: row.label for row in rows}
    by_index = {row.reported.index: row.label for row in rows}
    label_of = {
        name: by_name.get(name) or by_index.get(index)
        for name, index in zip(table.devices, table.indices, strict=False)
    }
    if None in label_of.values() or len(set(label_of.values())) != len(label_of):
        yield f"a second link table of {table.source} counts other devices and is not used"
        return
    for link in table.links:
        first, second = label_of.get(link.first), label_of.get(link.second)
        if first is None or second is None or first == second:
            continue
        found = classify(link.text, link.weight)
        if wsl and found.kind is LinkKind.SYSTEM:
            found = UNKNOWN
        known, speed = cells.get((first, second), (UNKNOWN, None))
        if known.kind is LinkKind.UNKNOWN:
            cells[first, second] = (found, speed or link.bandwidth_mb_s)
        elif found.kind not in (LinkKind.UNKNOWN, known.kind):
            yield f"two link tables disagree on {first} and {second}: the first one is used"
        elif known.hops is None and found.hops is not None:
            cells[first, second] = (found, speed or link.bandwidth_mb_s)
        elif speed is None:
            cells[first, second] = (known, link.bandwidth_mb_s)


def _pairs(labels: Sequence[str], cells: Cells) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """Every pair once; and a note where only one of the two ways was told."""
    pairs = []
    single = []
    for at, first in enumerate(labels):
        for second in labels[at + 1 :]:
            there, speed = cells.get((first, second), (UNKNOWN, None))
            back, slow = cells.get((second, first), (UNKNOWN, None))
            speeds = [value for value in (speed, slow) if value is not None]
            there, back = _filled(there, back), _filled(back, there)
            weak, strong = sorted((there, back), key=_strength)
            if there.kind is LinkKind.UNKNOWN or back.kind is LinkKind.UNKNOWN:
                pair = Pair(first, second, strong)
                if strong.kind is not LinkKind.UNKNOWN:
                    single.append(first if there.kind is LinkKind.UNKNOWN else second)
            else:
                differ = _strength(weak) != _strength(strong)
                pair = Pair(first, second, weak, strong if differ else None)
            pairs.append(replace(pair, bandwidth_mb_s=min(speeds, default=None)))
    note = f"the row of {span(dict.fromkeys(single))} is missing or cut: taken from the other way"
    return tuple(pairs), (note,) if single else ()


def _filled(link: LinkClass, reverse: LinkClass) -> LinkClass:
    """A link whose distance only the other way tells: a row of one of several tables is cut."""
    if link.kind is not reverse.kind or link.fabric != reverse.fabric:
        return link
    return replace(
        link,
        hops=reverse.hops if link.hops is None else link.hops,
        lanes=reverse.lanes if link.lanes is None else link.lanes,
    )


def _strength(link: LinkClass) -> tuple[int, int, int]:
    """Greater is better."""
    return -link.kind, link.lanes or 0, -(link.hops or 0)


def _nics(table: LinkMatrix, rows: Sequence[_Row]) -> Iterator[Nic]:
    names = dict(table.nic_names)
    by_name = {row.name: row.label for row in rows}
    kinds: dict[str, dict[str, LinkKind]] = {}
    for link in table.links:
        for device, nic in ((link.first, link.second), (link.second, link.first)):
            if device in by_name and nic in table.nics:
                kind = classify(link.text).kind
                kinds.setdefault(nic, {}).setdefault(by_name[device], kind)
    for nic in table.nics:
        reported = kinds.get(nic, {})
        best = min(reported.values(), default=LinkKind.UNKNOWN)
        near = (
            () if best >= LinkKind.SYSTEM else (d for d, kind in reported.items() if kind == best)
        )
        across = tuple(d for d, kind in reported.items() if kind is LinkKind.SYSTEM)
        yield Nic(nic, names.get(nic), best.word, tuple(near), across)


def _several_nodes(devices: Sequence[TopoDevice], nics: Sequence[Nic], facts: HostFacts) -> bool:
    """Whether anything tells that the host has more than one node with CPUs.

    SYS alone does not: virtual machines and boards with several roots say so on one socket. Beside
    cards that are nearer it does.
    """
    return (
        len([node for node in facts.numa if node.cpus]) > 1
        or (facts.cpu.sockets or 1) > 1
        or len({device.numa_node for device in devices} - {None}) > 1
        or len({bool(nic.across) for nic in nics}) > 1
    )


def _one_node(pair: Pair, devices: Sequence[TopoDevice]) -> bool:
    nodes = [one.numa_node for one in devices if one.label in (pair.first, pair.second)]
    return nodes[0] is not None and nodes[0] == nodes[1]


def _notes(
    devices: Sequence[TopoDevice],
    places: dict[str, NumaPlacement],
    pairs: Sequence[Pair],
    facts: HostFacts,
) -> Iterator[str]:
    known = [pair for pair in pairs if pair.link.kind is not LinkKind.UNKNOWN]
    nodes = {device.numa_node for device in devices}
    if len(devices) > 1 and not known and not is_wsl(facts):
        yield "links between devices are not known: add the tool's link table to the report"
    if is_wsl(facts):
        yield "WSL: distances and NUMA nodes are not shown to it; SYS is no evidence there"
    elif len(known) > 1 and nodes == {None} and not any(device.cpus for device in devices):
        if all(pair.link.kind is LinkKind.SYSTEM for pair in known):
            yield (
                "every pair is SYS and no affinity was told: WSL and virtual machines say so "
                "whatever the hardware, so it is no evidence"
            )
    if any(pair.link.kind is LinkKind.FABRIC and pair.link.hops is None for pair in pairs):
        yield "fabric without distances: a table of weights would tell which pairs are direct"
    if any(pair.link.kind is LinkKind.SYSTEM for pair in pairs if _one_node(pair, devices)):
        yield "SYS is printed inside a NUMA node too: it says only that there is no fast path"
    several = _several_nodes(devices, (), facts)
    node = next(iter(nodes), None)
    if len(devices) > 1 and len(nodes) == 1 and node is not None:
        by_tool = all(places[device.label].by_tool for device in devices)
        if by_tool and (several or (node > 0 and len(devices) > 3)):
            yield (
                f"every device says NUMA node {node} on a host of several: true of some "
                "machines, but a container's cpuset looks the same; compare with sysfs"
            )
    if any(device.memory_nodes for device in devices):
        yield (
            "nodes that hold only device memory have no CPUs: no thread is bound there, and the "
            "number of nodes is not the number of sockets"
        )
