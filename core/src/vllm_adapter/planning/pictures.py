"""Pictures of a plan as SVG inside a page: memory, topology, roofline. Colours are the page's."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from typing import Final

from vllm_adapter.planning.box import PlanDevice
from vllm_adapter.planning.launch_lines import placed
from vllm_adapter.planning.plan import ExecutionPlan
from vllm_adapter.planning.render import parts
from vllm_adapter.planning.sizing import GIB

_COLOURS: Final = ("--a", "--b", "--c", "--d", "--e")
_WIDE: Final = 360
"""Units of a picture's width, so that a phone of 400 pixels shows its letters at their size."""
_MOST_SHOWN: Final = 64


def memory_picture(plan: ExecutionPlan) -> Iterator[str]:
    """A stacked bar of one device's memory, and its legend in words."""
    capacity = plan.sizing.memory.capacity
    shares = [(name, max(0, size)) for name, size in parts(plan)]
    whole = max(capacity, sum(size for _, size in shares), 1)
    said = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in shares)
    yield f'<svg viewBox="0 0 {_WIDE} 58" role="img" aria-label="{html.escape(said)}">'
    at = 0.0
    for (name, size), colour in zip(shares, _COLOURS, strict=True):
        width = _WIDE * size / whole
        yield (
            f'<rect x="{at:.2f}" y="4" width="{width:.2f}" height="30" '
            f'style="fill:var({colour})"><title>{name}: {size:,} bytes</title></rect>'
        )
        at += width
    edge = _WIDE * capacity / whole
    budget = _WIDE * plan.sizing.memory.budget / whole
    side = "end" if budget > 100 else "start"
    for x, text, anchor in ((budget, "planned with", side), (edge, "", "end")):
        yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="38" style="stroke:var(--ink)"/>'
        if text:
            yield f'<text x="{x:.2f}" y="52" text-anchor="{anchor}" class="soft">{text}</text>'
    yield "</svg>"
    yield '<ul class="legend">'
    for (name, size), colour in zip(shares, _COLOURS, strict=True):
        share = 100 * size / whole
        yield (
            f'<li><i style="background:var({colour})"></i>{name} {size / GIB:.2f} GiB '
            f"({share:.1f} %)</li>"
        )
    yield f"</ul>\n<p>of {capacity / GIB:.2f} GiB a device</p>"


def topology_picture(plan: ExecutionPlan) -> Iterator[str]:
    """Link domains as boxes, devices in them, and the rank that each runs."""
    domains: dict[int, list[int]] = {}
    ranked = placed(plan.box, plan.groups)
    order = [*ranked, *(one for one in plan.box.devices if one not in ranked)]
    for at, device in enumerate(order[:_MOST_SHOWN]):
        domains.setdefault(device.domain, []).append(at)
    row, column, top = 64, 84, 24
    heights = [top + row * math.ceil(len(found) / 4) for found in domains.values()]
    tall = sum(heights) + 10 * len(heights)
    groups = plan.groups
    many = len(plan.box.devices)
    said = (
        f"{many} device{'s' * (many > 1)} in {len(domains)} link "
        f"domain{'s' * (len(domains) > 1)}; tensor parallel "
        f"{groups.tensor}, pipeline {groups.pipeline}, replicas {groups.data}"
    )
    yield f'<svg viewBox="0 0 {_WIDE} {tall}" role="img" aria-label="{said}">'
    y = 0
    for (number, found), height in zip(domains.items(), heights, strict=True):
        yield (
            f'<rect x="1" y="{y + 1}" width="{_WIDE - 2}" height="{height}" rx="6" '
            'style="fill:none;stroke:var(--soft)"/>'
            f'<text x="10" y="{y + 17}" class="soft">link domain {number}</text>'
        )
        for place, at in enumerate(found):
            yield from _device(
                plan, order[at], at, 10 + column * (place % 4), y + top + row * (place // 4)
            )
        y += height + 10
    yield "</svg>"
    yield f"<p>{html.escape(said)}. {html.escape(plan.box.domains_why)}</p>"


def _device(plan: ExecutionPlan, device: PlanDevice, at: int, x: int, y: int) -> Iterator[str]:
    groups = plan.groups
    used = at < groups.devices
    colour = _COLOURS[(at // groups.ranks) % 4] if used else "--e"
    node = "" if device.numa_node is None else f"node {device.numa_node}"
    title = f"{device.id} {device.name} {node} {device.cpus}"
    yield (
        f'<g><title>{html.escape(title)}</title><rect x="{x}" y="{y}" width="78" height="56" '
        f'rx="4" style="fill:none;stroke:var({colour});stroke-width:3"/>'
        f'<text x="{x + 6}" y="{y + 17}">{html.escape(device.id[:11])}</text>'
    )
    rank = f"rank {at}" if used else "not used"
    where = f"replica {at // groups.ranks}" if used and groups.data > 1 else node
    yield f'<text x="{x + 6}" y="{y + 33}">{rank}</text>'
    if where:
        yield f'<text x="{x + 6}" y="{y + 49}" class="soft">{where}</text>'
    yield "</g>"


def roofline_picture(plan: ExecutionPlan) -> Iterator[str]:
    """Both limits over operations a byte, on logarithmic axes, with the phases as points."""
    peaks = plan.rates
    found = [one.intensity for one in plan.phases] + [peaks.ridge]
    low = math.floor(math.log10(max(min(found), 1e-3))) - 0.3
    high = math.ceil(math.log10(max(found))) + 0.3
    top = math.log10(peaks.flops) + 0.4
    bottom = math.log10(peaks.bytes) + low - 0.2
    left, right, above, below = 46, 10, 10, 34
    tall = 220

    def x(intensity: float) -> float:
        return left + (_WIDE - left - right) * (math.log10(intensity) - low) / (high - low)

    def y(flops: float) -> float:
        return above + (tall - above - below) * (top - math.log10(flops)) / (top - bottom)

    said = "; ".join(
        f"{one.name} at {one.intensity:.1f} operations a byte, "
        f"{'computing' if one.intensity >= peaks.ridge else 'reading'} limits it"
        for one in plan.phases
    )
    yield f'<svg viewBox="0 0 {_WIDE} {tall}" role="img" aria-label="{html.escape(said)}">'
    start, end = 10**low, 10**high
    points = [
        (x(start), y(start * peaks.bytes)),
        (x(peaks.ridge), y(peaks.flops)),
        (x(end), y(peaks.flops)),
    ]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    yield f'<polyline points="{path}" style="fill:none;stroke:var(--a);stroke-width:2.5"/>'
    for power in range(math.ceil(low), math.floor(high) + 1):
        yield (
            f'<line x1="{x(10.0**power):.1f}" x2="{x(10.0**power):.1f}" y1="{above}" '
            f'y2="{tall - below}" style="stroke:var(--dim)"/>'
            f'<text x="{x(10.0**power):.1f}" y="{tall - below + 15}" text-anchor="middle" '
            f'class="soft">{_short(10.0**power)}</text>'
        )
    for power in range(math.ceil(bottom), math.floor(top) + 1):
        yield (
            f'<line x1="{left}" x2="{_WIDE - right}" y1="{y(10.0**power):.1f}" '
            f'y2="{y(10.0**power):.1f}" style="stroke:var(--dim)"/>'
            f'<text x="{left - 4}" y="{y(10.0**power) + 4:.1f}" text-anchor="end" '
            f'class="soft">{_short(10.0**power)}</text>'
        )
    for one, colour in zip(plan.phases, ("--b", "--d"), strict=False):
        speed = one.flops / one.seconds
        near_end = x(one.intensity) > _WIDE - 90
        yield (
            f'<circle cx="{x(one.intensity):.1f}" cy="{y(speed):.1f}" r="5" '
            f'style="fill:var({colour})"><title>{one.name}: {one.intensity:.1f}</title></circle>'
            f'<text x="{x(one.intensity) + (-8 if near_end else 8):.1f}" y="{y(speed) + 18:.1f}" '
            f'text-anchor="{"end" if near_end else "start"}">{one.name}</text>'
        )
    yield f'<text x="{_WIDE // 2}" y="{tall - 4}" text-anchor="middle">operations a byte</text>'
    yield "</svg>"
    yield "<p>Upwards: operations a second. The line is the most that the device can do.</p>"


def _short(value: float) -> str:
    for name, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{name}"
    return f"{value:g}"
