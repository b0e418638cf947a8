"""Sentences that follow from a topology: parallel sizes, peer access, network cards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from vllm_adapter.hostfacts.facts import LinkMatrix
from vllm_adapter.hostfacts.vendor_files import LazyMapping, sections
from vllm_adapter_doctor.topology.groups import components, short_groups
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

    A domain, or its meshes; devices without one: those of a NUMA group, or, where that of one of
    them is not known, those with no socket between them.
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
        if mine is not None and theirs is not None:
            return mine == theirs
        return LinkKind.SWITCH <= pair.link.kind <= LinkKind.NODE

    inner = [pair for pair in topology.pairs if pair.first in rest and pair.second in rest]
    return groups + components(rest, filter(near, inner))


def _sizes(topology: Topology, labels: Sequence[str]) -> Iterator[str]:
    groups = tensor_groups(topology, labels)
    largest = max(map(len, groups))
    sizes = [1 << power for power in range(1, largest.bit_length()) if 1 << power <= largest]
    if len(groups) == 1:
        if sizes and any(set(domain.devices) == set(labels) for domain in topology.domains):
            yield f"tensor parallel {_or(sizes)} stays inside one link domain"
        elif sizes and _known(topology, labels):
            yield f"tensor parallel {_or(sizes)} stays inside one NUMA node"
    elif not sizes and _known(topology, labels):
        yield "every device is alone: tensor parallelism crosses sockets; prefer pipeline or data"
    elif sizes:
        yield (
            f"tensor parallel {_or(sizes)} stays inside one group of {short_groups(groups)}; "
            "across groups use pipeline or data parallelism"
        )
        if any(domain.meshes for domain in topology.domains):
            yield "a larger tensor parallel size in the domain crosses several links: measure it"
    count = len(labels)
    if count > 2 and count & (count - 1):
        yield f"{count} is no tensor parallel size: a model's heads divide by powers of two"


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
