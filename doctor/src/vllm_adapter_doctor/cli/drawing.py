"""A topology as a picture: boxes by NUMA node and PCIe island, fabric links as lines.

A domain in which every pair is joined is one frame with a title instead of many lines.
"""

from __future__ import annotations

import textwrap

from vllm_adapter_doctor.cli.drawing_layout import (
    BOX,
    HEIGHT,
    ISLANDS,
    MARGIN,
    PAD,
    DrawingLayout,
    curve_height,
    lay_out,
)
from vllm_adapter_doctor.cli.svg import Canvas
from vllm_adapter_doctor.topology.link_kind import LinkKind
from vllm_adapter_doctor.topology.types import Domain, Island, Pair, Topology

_LETTER = 7.2
_BOLD = 8.2
"""Width of a letter of a sentence, in pixels."""
_SENTENCES = 4


def draw(topology: Topology) -> str:
    """The text of an SVG file. The topology has at least one device."""
    canvas = Canvas()
    layout = lay_out(topology, top=58)
    for domain, x, y, width, height in layout.frames():
        canvas.rect(x, y, width, height, "frame")
        canvas.text(x + width / 2, y + 23, _frame_title(domain), "bold", "middle")
    _groups(canvas, topology, layout)
    _lines(canvas, topology, layout)
    title = _title(topology)
    canvas.text(MARGIN, 36, title, "title")
    y = layout.bottom + 8
    for sentence in _sentences(topology, layout):
        alarm = sentence.startswith("! ")
        letters = (layout.width - 2 * MARGIN) / (_BOLD if alarm else _LETTER)
        for line in textwrap.wrap(sentence, int(letters)):
            y += 20
            canvas.text(MARGIN, y, line, "alarm" if alarm else "")
    return canvas.document(layout.width, y + 24, title)


def _groups(canvas: Canvas, topology: Topology, layout: DrawingLayout) -> None:
    weak = {one.devices[0] for one in topology.problems if len(one.devices) == 1}
    mixed = len({device.name for device in topology.devices}) > 1
    for group in layout.groups:
        canvas.rect(group.x, group.y, group.width, HEIGHT, "group")
        canvas.text(group.x + PAD, group.y + HEIGHT - 9, _place(group.island), "small")
        for name, block in group.blocks:
            if name:
                x, y = layout.places[block[0]]
                right = layout.places[block[-1]][0] + BOX[0]
                canvas.rect(x - 6, y - 6, right - x + 12, BOX[1] + 30, "island")
                canvas.text(x, y + BOX[1] + 17, name, "small")
        for label in group.labels:
            x, y = layout.places[label]
            device = topology.device(label)
            canvas.rect(x, y, *BOX, "box weak" if label in weak else "box")
            address = (device.bdf or "").removeprefix("0000:")
            second = _short(device.name or "") if mixed else address
            canvas.text(x + BOX[0] / 2, y + (20 if second else 28), label[:12], "bold", "middle")
            canvas.text(x + BOX[0] / 2, y + 37, second, "small", "middle")


def _short(name: str) -> str:
    """The end of a product's name that tells it from others."""
    for maker in ("NVIDIA", "GeForce", "AMD", "Instinct", "Intel(R)", "Huawei"):
        name = name.replace(maker, "")
    return " ".join(name.split())[:15]


def _place(island: Island) -> str:
    if island.by == "numa":
        return f"NUMA node {island.node}"
    return "same CPUs, node not known" if island.by == "cpus" else "NUMA node not known"


def _lines(canvas: Canvas, topology: Topology, layout: DrawingLayout) -> None:
    bad = {frozenset(problem.devices) for problem in topology.problems}
    most = max((pair.link.lanes or 0 for pair in layout.lines), default=0)
    rows = {label: group.row for group in layout.groups for label in group.labels}
    orders: dict[int, list[str]] = {}
    for group in layout.groups:
        orders.setdefault(group.row, []).extend(group.labels)
    labels = []
    for pair in layout.lines:
        wrong = frozenset((pair.first, pair.second)) in bad
        kind = "bad" if wrong else "fabric" if (pair.link.lanes or 0) == most else "fabric2"
        (x1, y1), (x2, y2) = sorted(
            (layout.places[pair.first], layout.places[pair.second]), key=lambda place: place[1]
        )
        x1, x2 = x1 + BOX[0] / 2, x2 + BOX[0] / 2
        if rows[pair.first] == rows[pair.second]:
            up = curve_height(orders[rows[pair.first]], pair)
            canvas.curve((x1, y1), (x2, y2), (-up, -up), kind)
            spot = ((x1 + x2) / 2, y1 - 0.75 * up + 4)
        else:
            canvas.curve((x1, y1 + BOX[1]), (x2, y2), (60, -60), kind)
            spot = ((x1 + x2) / 2, (y1 + BOX[1] + y2) / 2 + 4)
        labels.append((*spot, _lane(pair, wrong=wrong)))
    taken: set[tuple[int, int]] = set()
    for x, y, text in labels:
        cell = (round(x / 24), round(y / 12))
        if cell not in taken:  # two labels on one spot: the line's colour tells
            canvas.text(x, y, text, "lane", "middle")
            taken.add(cell)


def _lane(pair: Pair, *, wrong: bool) -> str:
    text = pair.link.shown if pair.link.kind.fast else "no link"
    return f"{text} !" if wrong else text


def _title(topology: Topology) -> str:
    names = {device.name for device in topology.devices}
    count = len(topology.devices)
    name = next(iter(names)) if len(names) == 1 else None
    if name:
        return f"{count} x {name}"
    vendors = ", ".join(dict.fromkeys(device.vendor for device in topology.devices))
    return f"{count} device{'s' if count > 1 else ''} ({vendors})"


def _frame_title(domain: Domain) -> str:
    if domain.complete is None:
        return f"{domain.fabric}, distances not reported"
    what = domain.sentence.partition(", ")[2].partition(";")[0]
    if not domain.complete:
        return f"{domain.fabric}: {what}"
    return f"{domain.fabric}: {what.removeprefix('every pair ')}, all to all"


def _sentences(topology: Topology, layout: DrawingLayout) -> list[str]:
    """What stands under the picture: what its lines do not say."""
    framed = {domain.devices for domain, *_ in layout.frames()}
    found = [f"! {problem.sentence}" for problem in topology.problems[:_SENTENCES]]
    if len(topology.problems) > _SENTENCES:
        found.append(f"! and {len(topology.problems) - _SENTENCES} more links")
    rest = [
        one.sentence
        for one in topology.domains
        if one.devices not in framed and len(one.devices) > 2  # two have their line
    ]
    found += rest[:_SENTENCES]
    if len(rest) > _SENTENCES:
        found.append(f"and {len(rest) - _SENTENCES} more domains")
    known = {pair.link.kind for pair in topology.pairs} - {LinkKind.UNKNOWN}
    if topology.pairs and not known:
        found.append("links between devices are not known")
    elif known and not topology.domains:
        words = [ISLANDS.get(kind.word, _FAR.get(kind.word, kind.word)) for kind in sorted(known)]
        found.append(f"no fabric; between devices: {', '.join(words)}")
    return found


_FAR = {"node": "several host bridges of a node", "system": "from node to node"}
