"""Which devices belong together: link domains of a fabric, islands of PCIe, NUMA groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from vllm_adapter_doctor.topology.link_kind import LinkKind
from vllm_adapter_doctor.topology.numa_map import span
from vllm_adapter_doctor.topology.types import Domain, Island, Pair, TopoDevice

_PCIE = (LinkKind.SWITCH, LinkKind.BRIDGE, LinkKind.HOST, LinkKind.NODE)
_MESH_SEARCH = 12
"""The largest domain that is split into meshes: the search grows beyond all bounds."""


def components(labels: Sequence[str], joined: Iterable[Pair]) -> list[tuple[str, ...]]:
    """The connected components, a partition of the labels, each in the labels' order."""
    root = {label: label for label in labels}

    def find(label: str) -> str:
        while root[label] != label:
            label = root[label]
        return label

    for pair in joined:
        root[find(pair.second)] = find(pair.first)
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(find(label), []).append(label)
    return [tuple(group) for group in groups.values()]


def domains(labels: Sequence[str], pairs: Sequence[Pair]) -> tuple[Domain, ...]:
    """Every set of two or more devices that die or fabric links join."""
    groups = components(labels, (pair for pair in pairs if pair.link.kind.fast))
    return tuple(_domain(group, pairs) for group in groups if len(group) > 1)


def _domain(group: tuple[str, ...], pairs: Sequence[Pair]) -> Domain:
    inner = [pair for pair in pairs if pair.first in group and pair.second in group]
    fast = [pair for pair in inner if pair.link.kind.fast]
    direct = [pair for pair in fast if is_direct(pair)]
    untold = [pair for pair in inner if pair.link.kind is LinkKind.UNKNOWN]
    names = dict.fromkeys(pair.link.fabric or "die" for pair in fast)
    fabric = " and ".join(names)
    lanes = {pair.link.lanes for pair in direct}
    count = next(iter(lanes)) if len(lanes) == 1 else None
    text = f"one {fabric} domain of {len(group)}: {span(group)}, "
    if untold and direct and len(direct) + len(untold) == len(inner):
        complete: bool | None = None  # a table that is cut: what is not printed is not absent
        words = dict.fromkeys(pair.link.shown for pair in direct)
        apart = dict.fromkeys(label for pair in untold for label in (pair.first, pair.second))
        text += f"every pair that is told {' or '.join(words) if len(words) < 4 else 'direct'}"
        text += f"; the pairs among {span(apart)} are not in the text"
    elif len(direct) == len(inner):
        complete = True
        words = dict.fromkeys(pair.link.shown for pair in direct)
        text += "joined by " if len(group) == 2 else "every pair "
        text += " or ".join(words) if len(words) < 4 else "direct"
    elif len(fast) == len(inner) and not any((pair.link.hops or 0) > 1 for pair in fast):
        complete = None
        text += "the report does not say how many links lie between two of them"
    else:
        complete = False
        text += f"{len(direct)} of {len(inner)} pairs have a direct link"
    meshes = _meshes(group, direct) if complete is False and direct else ()
    if meshes:
        text += f"; groups with every pair direct: {short_groups(meshes)}"
    return Domain(group, fabric, complete, count, text, meshes)


def short_groups(groups: Iterable[Iterable[str]]) -> str:
    """Groups of labels in short: "{GPU0-3}, {GPU4-7}"."""
    return ", ".join("{" + span(group) + "}" for group in groups)


def is_direct(pair: Pair) -> bool:
    """Whether one link of a fabric joins the two, as far as is known."""
    return pair.link.kind is LinkKind.DIE or (pair.link.kind.fast and pair.link.hops == 1)


def _meshes(group: tuple[str, ...], direct: Sequence[Pair]) -> tuple[tuple[str, ...], ...]:
    """A split into complete groups of the largest power of two that serves; () if none does."""
    if len(group) > _MESH_SEARCH:
        return ()
    joined = {frozenset((pair.first, pair.second)) for pair in direct}
    size = 1 << (len(group).bit_length() - 1)
    while size > 1:
        found = _split(group, size, joined) if len(group) % size == 0 else None
        if found:
            return tuple(found)
        size //= 2
    return ()


def _split(
    rest: tuple[str, ...], size: int, joined: set[frozenset[str]]
) -> list[tuple[str, ...]] | None:
    if not rest:
        return []
    first = rest[0]
    near = [label for label in rest[1:] if frozenset((first, label)) in joined]
    for others in combinations(near, size - 1):
        if all(frozenset(two) in joined for two in combinations(others, 2)):
            mesh = (first, *others)
            more = _split(tuple(label for label in rest if label not in mesh), size, joined)
            if more is not None:
                return [mesh, *more]
    return None


def islands(devices: Sequence[TopoDevice], pairs: Sequence[Pair]) -> tuple[Island, ...]:
    """Groups of two or more by PCIe, each at its tightest level, then every NUMA group."""
    labels = [device.label for device in devices]
    found: dict[tuple[str, ...], Island] = {}
    for level in _PCIE:
        near = (pair for pair in pairs if LinkKind.SWITCH <= pair.link.kind <= level)
        groups = components(labels, near)
        for group in groups:
            if len(group) > 1 and _whole(group, pairs, level):
                found.setdefault(group, Island(level.word, group))
    return (*found.values(), *_numa_groups(devices, pairs))


def _whole(group: Sequence[str], pairs: Sequence[Pair], level: LinkKind) -> bool:
    """Whether every pair of a group is that near: a chain of near pairs is no group."""
    inner = (pair for pair in pairs if pair.first in group and pair.second in group)
    return all(pair.link.kind <= level for pair in inner)


def _numa_groups(devices: Sequence[TopoDevice], pairs: Sequence[Pair]) -> tuple[Island, ...]:
    """A partition: by node; else by equal CPUs; else beside a device without a socket between.

    What is left is one group of unknown place.
    """
    keys: dict[str, tuple[str, object]] = {}
    for device in devices:
        if device.numa_node is not None:
            keys[device.label] = ("numa", device.numa_node)
        elif device.cpus:
            keys[device.label] = ("cpus", device.cpus)
    known = dict(keys)
    for pair in pairs:
        if LinkKind.SWITCH <= pair.link.kind <= LinkKind.NODE:
            for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
                if one in known:
                    keys.setdefault(other, known[one])
    groups: dict[tuple[str, object], list[str]] = {}
    for device in devices:
        groups.setdefault(keys.get(device.label, ("unknown", None)), []).append(device.label)
    return tuple(
        Island(by, tuple(labels), node if isinstance(node, int) else None)
        for (by, node), labels in groups.items()
    )
