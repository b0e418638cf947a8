"""Sentences that follow from a topology: parallel sizes, peer access, network cards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from vllm_adapter.hostfacts.facts import LinkMatrix
from vllm_adapter.hostfacts.vendor_files import LazyMapping, sections
from vllm_adapter_doctor.topology.groups import short_groups
from vllm_adapter_doctor.topology.link_kind import LinkKind
from vllm_adapter_doctor.topology.numa_map import span
from vllm_adapter_doctor.topology.types import Pair, Topology

_UNLINKED: Final[Mapping[str, Mapping[str, str]]] = LazyMapping(
    lambda: dict(sections("links", "none"))
)
"""What is said of several cards where none of the vendor's own links is seen."""
_TWOFOLD: Final[Mapping[str, Mapping[str, str]]] = LazyMapping(
    lambda: dict(sections("links", "cards"))
)
"""Cards that are two devices each, in the order of their numbers."""
_ALLOWED: Final = frozenset({"OK", "ENABLED", "TRUE"})
_REFUSED: Final = frozenset({"GNS", "CNS", "TNS", "NS", "DR", "DISABLED", "FALSE"})


def advice(topology: Topology, matrices: Sequence[LinkMatrix]) -> tuple[str, ...]:
    """All sentences, the most important first."""
    found: list[str] = []
    for vendor in dict.fromkeys(device.vendor for device in topology.devices):
        labels = [device.label for device in topology.devices if device.vendor == vendor]
        found += _peers(labels, [matrix for matrix in matrices if matrix.vendor == vendor])
        if len(labels) > 1:
            found += _sizes(topology, labels)
        if vendor in _UNLINKED and len(labels) > 1:
            found += _unlinked(topology, labels, _UNLINKED[vendor])
        if vendor in _TWOFOLD:
            found += _dies(topology, labels, _TWOFOLD[vendor])
    found += _cards(topology)
    return tuple(dict.fromkeys(found))


def tensor_groups(topology: Topology, labels: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups that tensor parallelism should not leave: a partition of the labels.

    A domain, or its meshes; devices without one: those of which every two are near, by their link
    or, where the table does not say it, by their NUMA group. Across SYS nothing is near.
    """
    groups: list[tuple[str, ...]] = []
    for domain in topology.domains:
        if set(domain.devices) <= set(labels):
            groups += domain.meshes or (domain.devices,)
    rest = [label for label in labels if not any(label in group for group in groups)]
    island = {
        label: at
        for at, one in enumerate(topology.groups())
        if one.by != "unknown"
        for label in one.devices
    }

    def near(pair: Pair) -> bool:
        mine, theirs = island.get(pair.first), island.get(pair.second)
        apart = mine is not None and theirs is not None and mine != theirs
        if pair.link.kind is LinkKind.UNKNOWN:
            return mine is not None and mine == theirs
        return not apart and LinkKind.SWITCH <= pair.link.kind <= LinkKind.NODE

    inner = [pair for pair in topology.pairs if pair.first in rest and pair.second in rest]
    close = {frozenset((pair.first, pair.second)) for pair in inner if near(pair)}
    return groups + _cliques(rest, close)


def _cliques(rest: Sequence[str], close: Set[frozenset[str]]) -> list[tuple[str, ...]]:
    """A partition into groups of which every two are close, each device in the first that fits."""
    groups: list[list[str]] = []
    for label in rest:
        fits = (g for g in groups if all(frozenset((label, one)) in close for one in g))
        group = next(fits, None)
        if group is None:
            groups.append([label])
        else:
            group.append(label)
    return [tuple(group) for group in groups]


def _sizes(topology: Topology, labels: Sequence[str]) -> Iterator[str]:
    groups = tensor_groups(topology, labels)
    linked = [group for group in groups if len(group) > 1 and _is_linked(topology, group)]
    plain = [group for group in groups if len(group) > 1 and group not in linked]
    pairs = [one for one in topology.pairs if one.first in labels and one.second in labels]
    if len(groups) == 1:
        if any(set(domain.devices) == set(labels) for domain in topology.domains):
            yield f"tensor parallel {_or(_powers(groups))} stays inside one link domain"
        elif _known(topology, labels):
            yield f"tensor parallel {_or(_powers(groups))} stays inside one NUMA node"
    elif linked and plain:
        yield (
            f"tensor parallel {_or(_powers(linked))}: {short_groups(linked)} first, where the "
            f"fast links are; {short_groups(plain)} talk over PCIe alone; across groups use "
            "pipeline or data parallelism"
        )
    elif linked or plain:
        both = linked or plain
        yield (
            f"tensor parallel {_or(_powers(both))} stays inside one group of "
            f"{short_groups(both)}; across groups use pipeline or data parallelism"
        )
    elif any(pair.link.kind is LinkKind.SYSTEM for pair in pairs):
        yield (
            "no two devices are nearer than SYS: tensor parallelism goes through the host's "
            "memory; measure it against pipeline or data parallelism"
        )
    if any(domain.meshes for domain in topology.domains):
        yield "a larger tensor parallel size in the domain crosses several links: measure it"
    count = len(labels)
    if count > 2 and count & (count - 1):
        yield f"{count} is no tensor parallel size: a model's heads divide by powers of two"


def _powers(groups: Sequence[Sequence[str]]) -> list[int]:
    largest = max(map(len, groups))
    return [1 << power for power in range(1, largest.bit_length()) if 1 << power <= largest]


def _is_linked(topology: Topology, group: Sequence[str]) -> bool:
    return any(set(group) <= set(domain.devices) for domain in topology.domains)


def _known(topology: Topology, labels: Sequence[str]) -> bool:
    return all(topology.device(label).numa_node is not None for label in labels)


def _or(sizes: Sequence[int]) -> str:
    return " or ".join(map(str, sizes))


def _peers(labels: Sequence[str], matrices: Sequence[LinkMatrix]) -> Iterator[str]:
    cells = [
        (link.text or "").strip().upper()
        for matrix in matrices
        if matrix.kind == "peer"
        for link in matrix.links
        if link.first != link.second and link.second in matrix.devices
    ]
    refused = sorted({cell for cell in cells if cell in _REFUSED})
    if refused and not any(cell in _ALLOWED for cell in cells):
        yield (
            f"peer access between devices is off (the tool says {', '.join(refused)}): "
            "transfers go through host memory; do not enable custom all-reduce"
        )
    elif refused:
        yield f"peer access is refused for some pairs (the tool says {', '.join(refused)})"


def _unlinked(topology: Topology, labels: Sequence[str], said: Mapping[str, str]) -> Iterator[str]:
    joined = {label for domain in topology.domains for label in domain.devices}
    names = [topology.device(label).name or "" for label in labels if label not in joined]
    reported = any(pair.link.kind is not LinkKind.UNKNOWN for pair in topology.pairs)
    if not names or joined:
        return
    if any(re.search(said["names"], name) for name in names):
        yield said["named"]
    elif reported:
        yield said["others" if all(names) else "unnamed"]


def _dies(topology: Topology, labels: Sequence[str], said: Mapping[str, str]) -> Iterator[str]:
    names = [topology.device(label).name or "" for label in labels]
    named = sum(said["names"] in name for name in names)
    if named:
        yield said["text"].format(devices=named, cards=-(-named // 2))
    elif any(domain.complete is not True for domain in topology.domains) and not any(names):
        yield said["unnamed"].format(devices=len(labels), cards=-(-len(labels) // 2))


def _cards(topology: Topology) -> Iterator[str]:
    if not topology.nics:
        return
    # a device whose own memory is a node is SYS to all, also to what shares its CPU (Grace)
    labels = [device.label for device in topology.devices if not device.memory_nodes]
    far = [label for label in labels if all(label in nic.across for nic in topology.nics)]
    if far:
        yield (
            f"{span(far)}: no network card is near, all are SYS: RDMA from there is likely to "
            "cross the interconnect of the sockets"
        )
    others = [nic.label for nic in topology.nics if labels and set(nic.across) >= set(labels)]
    if others and len(others) < len(topology.nics):
        yield f"{span(others)} sit on another socket than every device: not for RDMA from here"
