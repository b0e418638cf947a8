"""Links that are not as their siblings: degraded, asymmetric, or missing.

A lane count is judged only beside others of the same domain or of equal pairs, and never the
uneven meshes of one and two lanes that eight-device boards are built with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from vllm_adapter.hostfacts.vendor_files import once, sections
from vllm_adapter_doctor.topology.groups import is_direct, short_groups
from vllm_adapter_doctor.topology.link_kind import LinkKind
from vllm_adapter_doctor.topology.numa_map import span
from vllm_adapter_doctor.topology.types import Domain, Pair, Problem, TopoDevice

_MOSTLY: Final = 0.75
"""The share of pairs that must be alike before the others are called faults."""
_MESH_LANES: Final = 2
"""NVLink boards of eight devices without a switch join some pairs by one lane, others by two."""


def problems(
    devices: Sequence[TopoDevice], pairs: Sequence[Pair], domains: Sequence[Domain]
) -> tuple[Problem, ...]:
    """All of them, asymmetric ones first."""
    return (
        *_asymmetric(devices, pairs),
        *_uneven(pairs, domains),
        *_weak_bridges(devices, pairs, domains),
        *_absent(pairs, domains),
        *_lost(devices, pairs, domains),
        *_partitioned(devices, domains),
        *_no_fabric(devices, pairs, domains),
    )


def _inner(domain: Domain, pairs: Sequence[Pair]) -> list[Pair]:
    names = set(domain.devices)
    return [pair for pair in pairs if pair.first in names and pair.second in names]


def _asymmetric(devices: Sequence[TopoDevice], pairs: Sequence[Pair]) -> Iterator[Problem]:
    """A device that has lost its links to all others is said once, and not with each of them."""
    differ = [pair for pair in pairs if pair.reverse is not None]
    count = Counter(label for pair in differ for label in (pair.first, pair.second))
    lost = [one.label for one in devices if count[one.label] > 1]
    lost = [one for one in lost if all(one in (p.first, p.second) for p in differ)]
    if len(lost) == 1 and all(p.reverse and p.reverse.kind.fast for p in differ):
        strong = differ[0].reverse
        yield Problem(
            "asymmetric",
            (lost[0],),
            f"{lost[0]} says {differ[0].link.shown} to the others, which say "
            f"{strong.shown if strong else ''} to it: it has lost its links; reset it, or restart "
            "the fabric's service",
        )
        return
    for pair in differ:
        if pair.reverse is not None:
            fabric = pair.reverse.kind.fast
            why = (
                "a link is down or was trained badly" if fabric else "was the table pasted whole?"
            )
            yield Problem(
                "asymmetric",
                (pair.first, pair.second),
                f"{pair.first} and {pair.second}: {pair.link.shown} one way and "
                f"{pair.reverse.shown} the other; {why}",
            )


def _uneven(pairs: Sequence[Pair], domains: Sequence[Domain]) -> Iterator[Problem]:
    """Within a domain in which every pair is joined."""
    for domain in domains:
        if len(domain.devices) < 3 or not domain.complete:
            continue
        inner = [pair for pair in _inner(domain, pairs) if pair.link.lanes]
        most = max((pair.link.lanes or 0 for pair in inner), default=0)
        weak = [pair for pair in inner if (pair.link.lanes or 0) < most]
        bonded = most > _MESH_LANES and domain.fabric == "NVLink"
        if bonded or (len(domain.devices) > 3 and len(weak) <= (1 - _MOSTLY) * len(inner)):
            yield from _weak_devices(domain, weak, most)


def _weak_devices(domain: Domain, weak: Sequence[Pair], most: int) -> Iterator[Problem]:
    """A device that is weak to all others once; then each pair that this does not explain.

    Behind a switch one lost lane of a device shows in its whole row.
    """
    count = Counter(label for pair in weak for label in (pair.first, pair.second))
    whole = [label for label in domain.devices if count[label] == len(domain.devices) - 1]
    if len(whole) == len(domain.devices):
        whole = []
    for label in whole:
        lanes = [pair.link.lanes or 0 for pair in weak if label in (pair.first, pair.second)]
        yield Problem(
            "degraded",
            (label,),
            f"{label}: at most {max(lanes)} lanes to every other device, where others of the same "
            f"table have {most}; one of its links is down",
        )
    for pair in weak:
        if pair.reverse is None and not {pair.first, pair.second} & set(whole):
            yield _degraded(pair, most)


def _weak_bridges(
    devices: Sequence[TopoDevice], pairs: Sequence[Pair], domains: Sequence[Domain]
) -> Iterator[Problem]:
    """Among bridged pairs of cards with the same name."""
    names = {device.label: (device.vendor, device.name) for device in devices}
    bridges = [_inner(domain, pairs)[0] for domain in domains if len(domain.devices) == 2]
    for pair in bridges:
        kind = {names[pair.first], names[pair.second]}
        lanes = [
            other.link.lanes or 0
            for other in bridges
            if {names[other.first], names[other.second]} == kind
        ]
        if pair.link.lanes and pair.reverse is None and pair.link.lanes < max(lanes):
            yield _degraded(pair, max(lanes))


def _degraded(pair: Pair, most: int) -> Problem:
    return Problem(
        "degraded",
        (pair.first, pair.second),
        f"{pair.first} and {pair.second}: {pair.link.shown}, where others of the same table have "
        f"{most} lanes; {_cure(pair.link.fabric, most)}look for a link that is down",
    )


def _cure(fabric: str | None, lanes: int) -> str:
    """A bridge is between two cards, and has no more lanes than its kind: others have none."""
    most = _bridge_lanes().get(fabric or "")
    return "reseat the bridge, or " if most is not None and lanes <= most else ""


@once
def _bridge_lanes() -> dict[str, int]:
    """Of each fabric with bridges the most lanes that bridges bring to a card."""
    return {str(one["fabric"]): int(one["lanes"]) for _, one in sections("links", "bridges")}


def _lost(
    devices: Sequence[TopoDevice], pairs: Sequence[Pair], domains: Sequence[Domain]
) -> Iterator[Problem]:
    """A device without a link beside others of its kind that all have one: no bridge does that.

    Three cards that are all joined are on a board with a fabric.
    """
    names = {one.label: (one.vendor, one.name) for one in devices}
    joined = {label for domain in domains for label in domain.devices}
    told = {
        label
        for pair in pairs
        if pair.link.kind not in (LinkKind.UNKNOWN, LinkKind.FABRIC)
        for label in (pair.first, pair.second)
    }
    for domain in domains:
        if len(domain.devices) < 3 or not domain.complete:
            continue
        kinds = {names[label] for label in domain.devices}
        alone = [one for one in names if one in told - joined and names[one] in kinds]
        if len(kinds) == 1 and 0 < len(alone) < len(domain.devices):
            yield Problem(
                "lost",
                tuple(alone),
                f"{span(alone)}: no {domain.fabric} to any other, and {span(domain.devices)} are "
                "all joined: it has lost its links; reset it, or restart the fabric's service",
            )


def _partitioned(devices: Sequence[TopoDevice], domains: Sequence[Domain]) -> Iterator[Problem]:
    """Pairs with more lanes than bridges have, in a box of more devices: a part of a fabric."""
    parts = [
        domain
        for domain in domains
        if (domain.lanes or 0) > _bridge_lanes().get(domain.fabric, domain.lanes or 0)
        and len(domain.devices) < len(devices)
    ]
    if parts and sum(len(one.devices) for one in parts) == len(devices):
        yield Problem(
            "lost",
            tuple(label for one in parts for label in one.devices),
            f"{short_groups(one.devices for one in parts)}: {parts[0].lanes} lanes, which come "
            f"through a switch and no bridge, and none between the groups: the {parts[0].fabric} "
            "fabric is partitioned, or its manager has not set it up",
        )


def _absent(pairs: Sequence[Pair], domains: Sequence[Domain]) -> Iterator[Problem]:
    """Pairs without a link in a domain that joins nearly all, and of which all is known."""
    for domain in domains:
        inner = _inner(domain, pairs)
        absent = [pair for pair in inner if not pair.link.kind.fast]
        direct = [pair for pair in inner if is_direct(pair)]
        whole = all(pair.link.kind is not LinkKind.UNKNOWN for pair in inner)
        if absent and whole and len(inner) > 3 and len(direct) >= _MOSTLY * len(inner):
            for pair in absent:
                yield Problem(
                    "missing",
                    (pair.first, pair.second),
                    f"{pair.first} and {pair.second}: no {domain.fabric} ({pair.link.shown}), "
                    "where nearly every other pair of the domain has it",
                )


def _no_fabric(
    devices: Sequence[TopoDevice], pairs: Sequence[Pair], domains: Sequence[Domain]
) -> Iterator[Problem]:
    """Boards that are built with a fabric, and show none."""
    joined = {label for domain in domains for label in domain.devices}
    reported = {
        label
        for pair in pairs
        if pair.link.kind is not LinkKind.UNKNOWN
        for label in (pair.first, pair.second)
    }
    alone = [
        one for one in devices if one.label in reported and one.label not in joined and one.name
    ]
    for vendor, boards in sections("links", "boards"):
        words, fabric, action = boards["words"], boards["fabric"], boards["action"]
        found = [d.label for d in alone if d.vendor == vendor and re.search(words, d.name or "")]
        if len(found) > 1:
            yield Problem(
                "missing",
                tuple(found),
                f"{span(found)}: boards of this name have {fabric}, and none is seen; {action}; "
                "in a virtual machine, it may not be passed through",
            )
