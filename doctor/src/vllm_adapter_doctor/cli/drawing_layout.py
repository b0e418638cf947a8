"""Where everything of a topology's picture goes: groups in rows, domains as frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_adapter_doctor.topology.groups import is_direct
from vllm_adapter_doctor.topology.types import Domain, Island, Pair, Topology

BOX: Final = (92.0, 46.0)
PAD: Final = 14.0
MARGIN: Final = 28.0
HEIGHT: Final = BOX[1] + 3 * PAD + 28
"""Of a group: a box, the island's name under it, the group's name under that."""
TOP: Final = 22.0
"""From a group's upper edge to its boxes."""
FRAME_HEAD: Final = 34.0
FRAME_FOOT: Final = 12.0
ISLANDS: Final = {"switch": "PCIe switch", "bridge": "PCIe switches", "host": "host bridge"}
_GAP: Final = 14.0
_ROW: Final = 8
"""Devices beside each other; more begin another row."""
_MOSTLY: Final = 0.75
"""The share of direct pairs from which a frame says more than the lines."""


@dataclass(slots=True)
class Group:
    """A NUMA group: its islands in order, the frame it is in, and where it is drawn."""

    island: Island
    blocks: list[tuple[str, tuple[str, ...]]]
    frame: Domain | None
    x: float = 0
    y: float = 0
    width: float = 0
    row: int = 0
    above: float = 0
    """Room above it for the curves of its row."""

    @property
    def labels(self) -> list[str]:
        """Its devices from left to right."""
        return [label for _, block in self.blocks for label in block]


@dataclass(slots=True)
class DrawingLayout:
    """`lines` are drawn, in the order of the pairs; `places` are upper left corners of boxes."""

    groups: list[Group]
    lines: list[Pair]
    places: dict[str, tuple[float, float]]
    width: float
    bottom: float

    def frames(self) -> Iterator[tuple[Domain, float, float, float, float]]:
        """(domain, x, y, width, height) of each frame."""
        for domain in dict.fromkeys(g.frame for g in self.groups if g.frame is not None):
            own = [group for group in self.groups if group.frame == domain]
            x, y = min(g.x for g in own), min(g.y - g.above for g in own) - FRAME_HEAD
            right = max(group.x + group.width for group in own)
            bottom = max(group.y for group in own) + HEIGHT
            yield domain, x - PAD, y, right - x + 2 * PAD, bottom - y + FRAME_FOOT


def lay_out(topology: Topology, top: float) -> DrawingLayout:
    """Places for all; above each row there is room for its curves."""
    framed = _framed(topology)
    groups = [
        Group(island, _blocks(topology, island), _frame_of(island, framed))
        for island in topology.groups()
    ]
    groups.sort(key=lambda group: framed.index(group.frame) if group.frame else len(framed))
    lines = _lines(topology, framed)
    places: dict[str, tuple[float, float]] = {}
    y = top
    before: Domain | None = None
    for number, row in enumerate(_rows(groups)):
        order = [label for group in row for label in group.labels]
        rises = [curve_height(order, p) for p in lines if p.first in order and p.second in order]
        above = max(0.0, 0.75 * max(rises, default=0.0) - TOP + 8)
        y += above
        y += FRAME_HEAD if row[0].frame != before and row[0].frame else 0
        before = row[0].frame
        x = MARGIN
        for group in row:
            group.x, group.y, group.row, group.above = x, y, number, above
            _place(group, places)
            x += group.width + 22
        y += HEIGHT + 36
    width = max(group.x + group.width for group in groups) + MARGIN
    return DrawingLayout(
        groups, lines, places, max(width, 560.0), y - 36 + (FRAME_FOOT if framed else 0)
    )


def curve_height(order: Sequence[str], pair: Pair) -> float:
    """How high the handles of a curve between two devices of one row are."""
    return 34 + 22.0 * abs(order.index(pair.first) - order.index(pair.second))


def _framed(topology: Topology) -> list[Domain]:
    """Domains that are whole groups, and mostly joined or of unknown distances."""
    groups = [set(island.devices) for island in topology.groups()]
    found = []
    for domain in topology.domains:
        names = set(domain.devices)
        inner = [p for p in topology.pairs if p.first in names and p.second in names]
        direct = [pair for pair in inner if is_direct(pair)]
        dense = domain.complete is None or len(direct) >= _MOSTLY * len(inner)
        whole = all(group <= names or not group & names for group in groups)
        if len(names) > 2 and dense and whole:
            found.append(domain)
    return found


def _frame_of(island: Island, framed: Sequence[Domain]) -> Domain | None:
    return next((one for one in framed if set(island.devices) <= set(one.devices)), None)


def _lines(topology: Topology, framed: Sequence[Domain]) -> list[Pair]:
    """Direct links outside the frames; inside, only what is wrong."""
    bad = {frozenset(problem.devices) for problem in topology.problems}
    inside = {label: at for at, one in enumerate(framed) for label in one.devices}
    found = []
    for pair in topology.pairs:
        here, there = inside.get(pair.first), inside.get(pair.second)
        if frozenset((pair.first, pair.second)) in bad:
            found.append(pair)
        elif (here is None or here != there) and pair.link.kind.fast:
            if is_direct(pair) or pair.link.hops is None:
                found.append(pair)
    return found


def _blocks(topology: Topology, group: Island) -> list[tuple[str, tuple[str, ...]]]:
    """The tightest islands inside a group, then its other devices one by one."""
    blocks: list[tuple[str, tuple[str, ...]]] = []
    taken: set[str] = set()
    for island in topology.islands:  # the tightest come first
        inside = set(island.devices) <= set(group.devices) and not taken & set(island.devices)
        if island.by in ISLANDS and inside:
            blocks.append((ISLANDS[island.by], island.devices))
            taken |= set(island.devices)
    blocks += [("", (label,)) for label in group.devices if label not in taken]
    order = list(group.devices)
    return sorted(blocks, key=lambda block: order.index(block[1][0]))


def _rows(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups beside each other while they fit; each frame begins a row."""
    rows: list[list[Group]] = []
    count = 0
    for group in groups:
        size = len(group.island.devices)
        if not rows or count + size > _ROW or rows[-1][0].frame != group.frame:
            rows.append([])
            count = 0
        rows[-1].append(group)
        count += size
    return rows


def _place(group: Group, places: dict[str, tuple[float, float]]) -> None:
    at = group.x + PAD
    for name, block in group.blocks:
        for label in block:
            places[label] = (at, group.y + TOP)
            at += BOX[0] + _GAP
        at += 6 if name else 0
    group.width = max(at - _GAP + PAD - group.x, 150.0)
