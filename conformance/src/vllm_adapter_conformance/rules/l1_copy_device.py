"""L1: copies that stay on devices: inside one, and from one to another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side import looks
from vllm_adapter_conformance.device_side.copy_device import moved
from vllm_adapter_conformance.rules._drawn import MIB, PAGE, beside, between, chance, content
from vllm_adapter_conformance.rules._expect import expect_bytes, index

Place = tuple[int, int, int]
"""(bytes, offset in the source, offset in the target)."""


def _places(draw: random.Random) -> list[Place]:
    sizes = [
        draw.randrange(1, 64),
        draw.randrange(257, PAGE) | 1,
        beside(draw, draw.randrange(12, 17)),
        between(draw, 1 << 17, MIB),
        MIB + draw.randrange(1, PAGE),
        between(draw, 2 * MIB, 8 * MIB),
    ]
    return [(size, draw.choice((0, 1, 63, 511)), draw.choice((0, 2, 65, 513))) for size in sizes]


def _judge(seen: dict[str, bytes], data: bytes, place: Place, what: str) -> None:
    size, from_offset, to_offset = place
    around, guard = bytes([looks.DEVICE_POISON]), looks.GUARD
    for name, offset in (("target", to_offset), ("source", from_offset)):
        want = around * offset + data + around * guard
        text = f"{what} of {size} bytes from {from_offset} to {to_offset}: the {name}'s memory"
        expect_bytes(seen[name], want, text)


def _inside(target: Target) -> Iterator[Case]:
    for number in range(2):
        draw = chance(target, "on device", number)
        yield Case(f"drawn-{number}", {"places": _places(draw)})


@rule(
    "L1.copy.on_device",
    summary="a copy inside the device's memory moves its bytes, all of them and no other",
    why="Caches grow and blocks are copied that way, without the host. One that moves whole words "
    "or one descriptor alone leaves the end of a block as it was.",
    cases=_inside,
    needs=("L1.copy.round_trip", "L1.copy.offset"),
)
def check_on_device(bench: Bench, case: Case) -> None:
    """Copies between two allocations at odd offsets, by torch, and looks at both."""
    device = index(bench)
    for place in case.params["places"]:
        size, from_offset, to_offset = place
        data = content((bench.target.seed, "on device", place), size)
        seen = bench.observe(
            moved,
            source=device,
            target=device,
            data=data,
            from_offset=from_offset,
            to_offset=to_offset,
        )
        _judge(seen, data, place, "a copy on the device")


def _between(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name in ("to it", "from it"):
        if len(target.record.devices) < 2:
            yield NotDeclaredCase(name, "/devices", "there is one device only")
        else:
            draw = chance(target, "between", name)
            yield Case(name, {"places": _places(draw)})


@rule(
    "L1.copy.between",
    summary="a copy from one device to another moves its bytes, all of them and no other",
    why="A model that is split over devices hands its activations on this way. A link that moves "
    "one packet, or an address that is taken for the other device's, gives the next layer noise.",
    cases=_between,
    needs=("L1.copy.on_device",),
)
def check_between(bench: Bench, case: Case) -> None:
    """Copies at odd offsets between this device and another one."""
    device = index(bench)
    other = next(d.index for d in bench.target.record.devices if d.index != device)
    ends: dict[str, Any] = {"source": device, "target": other}
    if case.id == "to it":
        ends = {"source": other, "target": device}
    for place in case.params["places"]:
        size, from_offset, to_offset = place
        data = content((bench.target.seed, "between", place), size)
        seen = bench.observe(
            moved, **ends, data=data, from_offset=from_offset, to_offset=to_offset
        )
        _judge(seen, data, place, f"a copy from device {ends['source']} to {ends['target']}")
