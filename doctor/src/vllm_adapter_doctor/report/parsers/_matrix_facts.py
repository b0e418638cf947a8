"""Host facts of a link matrix: its links, and what its last columns say of each device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Link, LinkMatrix
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._common import cpu_list
from vllm_adapter_doctor.report.parsers._matrix import MatrixTable
from vllm_adapter_doctor.report.parsers._matrix_cells import is_complete_cpu_list
from vllm_adapter_doctor.report.text import Report

_LEGEND: Final = re.compile(r"(?<![\w/])(NIC\d+):\s*(.*)$")
_NIC_NAME: Final = re.compile(r"[a-z][A-Za-z0-9_.\-]*\d[A-Za-z0-9_.\-]*")
_CAPPED: Final = re.compile(r"(\d+) NICs found in the topology, only displaying (\d+)")
_LEGEND_LINES: Final = 400


def numbers(label: str) -> tuple[int, ...]:
    """The numbers of a label: 12 of "Phy-ID12", 1 and 0 of "GPU 1/0"."""
    return tuple(int(found) for found in re.findall(r"\d+", label))


def matrix(table: MatrixTable, source: str, vendor: str, kind: str = "links") -> LinkMatrix:
    """The links of a table; a cell without text comes from the other direction, with a note."""
    labels = table.labels
    cells = {
        (label, other): row.cells[column]
        for label, row in table.rows.items()
        for column, other in enumerate(labels)
        if other and column < len(row.cells)
    }
    links = []
    for first in filter(None, labels):
        for second in filter(None, labels):
            text = cells.get((first, second)) or cells.get((second, first))
            if first != second and text:
                links.append(Link(first, second, text))
    devices = tuple(label for label in labels[: table.devices] if label)
    return LinkMatrix(
        source,
        vendor,
        devices,
        tuple(numbers(label)[0] for label in devices),
        kind,
        tuple(filter(None, labels[table.devices :])),
        tuple(links),
        notes=tuple(_notes(table)),
    )


def _notes(table: MatrixTable) -> Iterable[str]:
    if table.headless:
        yield "the table's header is missing: columns are named by the rows' own cells"
    if "" in table.labels:
        unnamed = sum(not label for label in table.labels)
        yield f"{unnamed} columns of the table have no name, so their links are left out"
    missing = [label for label in table.labels if label and label not in table.rows]
    if missing:
        yield (
            f"the row{'s' * (len(missing) > 1)} of {_listed(missing)} missing: their links are "
            "taken from the other rows, those between them are unknown"
        )
    short = [label for label, row in table.rows.items() if len(row.cells) < len(table.labels)]
    if short:
        yield f"the row{'s' * (len(short) > 1)} of {_listed(short)} cut or damaged"


def _listed(labels: Sequence[str]) -> str:
    verb = "is" if len(labels) == 1 else "are"
    if len(labels) > 6:
        return f"{', '.join(labels[:3])} ... {labels[-1]} ({len(labels)} of them) {verb}"
    return f"{', '.join(labels)} {verb}"


def accelerators(table: MatrixTable, source: str, vendor: str) -> tuple[Accelerator, ...]:
    """The devices of a table, with NUMA nodes and CPUs where a whole value was printed."""
    found = []
    for label in filter(None, table.labels[: table.devices]):
        values = table.rows[label].values if label in table.rows else {}
        cpus = values.get("cpu", "")
        whole = is_complete_cpu_list(cpus) if cpus else True
        found.append(
            Accelerator(
                vendor,
                numbers(label)[0],
                source,
                numa_nodes=cpu_list(values.get("numa", "")) or (),
                memory_nodes=cpu_list(values.get("memory", "")) or (),
                cpus=(cpu_list(cpus) or ()) if whole else (),
                cpus_truncated=not whole,
            )
        )
    return tuple(found)


def host_nodes(devices: Sequence[Accelerator]) -> tuple[Accelerator, ...]:
    """Devices whose own memory is NUMA nodes (Grace), placed on the one node that has CPUs.

    The kernel numbers nodes of CPUs first, those of device memory behind them; `NUMA Affinity`
    lists both. A device stays as it is where more than one node is left.
    """
    memory = [node for device in devices for node in device.memory_nodes]
    if not memory:
        return tuple(devices)
    placed = []
    for device in devices:
        nodes = tuple(node for node in device.numa_nodes if node < min(memory))
        placed.append(replace(device, numa_nodes=nodes) if len(nodes) == 1 else device)
    return tuple(placed)


def with_legend(found: LinkMatrix, report: Report, table: MatrixTable) -> LinkMatrix:
    """The matrix with the names of its network cards, and what is wrong with their list."""
    names: dict[str, str] = {}
    lost: list[str] = []
    notes = list(found.notes)
    after = report.lines[table.last + 1 : table.last + 1 + _LEGEND_LINES]
    for line in after if found.nics else ():
        entry = _LEGEND.search(line.text)
        if not entry or entry[1] in names or entry[1] in lost or entry[1] not in found.nics:
            continue
        if _NIC_NAME.fullmatch(entry[2].strip()):
            names[entry[1]] = entry[2].strip()
        else:
            lost.append(entry[1])
    if lost:
        notes.append(f"the names of {_listed(lost)} overwritten in the legend")
    before = report.lines[max(0, table.first - 3) : table.first]
    for line in before:
        if capped := _CAPPED.search(line.text):
            notes.append(
                f"the list of network cards is incomplete: {capped[1]} found, {capped[2]} shown"
            )
    return replace(found, nic_names=tuple(names.items()), notes=tuple(notes))


def joined(parts: Sequence[tuple[LinkMatrix, tuple[Accelerator, ...]]]) -> HostFacts:
    """All tables of one tool. A value that two tables give differently is unknown."""
    devices: dict[tuple[str, int, int | None], Accelerator] = {}
    for _, found in parts:
        for device in found:
            key = (device.vendor, device.index, device.die)
            devices[key] = _agreed(devices[key], device) if key in devices else device
    return HostFacts(
        accelerators=tuple(devices.values()),
        links=tuple(dict.fromkeys(table for table, _ in parts)),
    )


def _agreed(one: Accelerator, other: Accelerator) -> Accelerator:
    def same(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return (a or b) if not a or not b or a == b else ()

    truncated = one.cpus_truncated or other.cpus_truncated
    return replace(
        one,
        numa_nodes=same(one.numa_nodes, other.numa_nodes),
        memory_nodes=same(one.memory_nodes, other.memory_nodes),
        cpus=() if truncated else same(one.cpus, other.cpus),
        cpus_truncated=truncated,
    )
