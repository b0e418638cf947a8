"""L1: bytes that go to the device and come back: how many, where from and where to."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from vllm_adapter.hostfacts import live
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side import looks
from vllm_adapter_conformance.rules._drawn import MIB, PAGE, SIZES, between, chance, content
from vllm_adapter_conformance.rules._expect import expect_bytes, index

SMALL_BUDGET: Final = 5.0
"""Seconds below which no copy above 64 MiB is drawn."""
_TIMES: Final = 8
"""Free memory is so many times the largest copy: buffers, guards and what is compared."""


def _sizes(target: Target) -> Iterator[Case]:
    for kind, draw in SIZES.items():
        yield Case(kind, {"sizes": draw(chance(target, "sizes", kind))})


@rule(
    "L1.copy.round_trip",
    summary="bytes that go to the device come back equal, from one byte to 256 MiB",
    why="Every weight and every token goes this way. A transfer that ends after one descriptor, "
    "loses the last byte of an odd size or sends a page twice gives wrong numbers in one layer "
    "of one model. Sizes and contents are drawn in each run; the device's memory and the host's "
    "buffer are filled with other bytes first, so that a copy that does not happen is seen. Split "
    "what one transfer cannot hold, and copy the rest that no word divides.",
    cases=_sizes,
    needs=("L1.device.open",),
    seconds=120.0,
)
def check_round_trip(bench: Bench, case: Case) -> Observation:
    """Writes drawn bytes over poison and reads them back into poison."""
    device, left_out, seed = index(bench), [], bench.target.seed
    for size in case.params["sizes"]:
        if not admitted(bench, size):
            left_out.append(size)
            continue
        data = content((seed, "round trip", size), size)
        seen = bench.observe(looks.trip, device=device, data=data, whole=False)
        judge_trip(seen, data, f"the round trip of {size} bytes")
    return Observation(note=not_visited(left_out))


def admitted(bench: Bench, size: int) -> bool:
    """Whether the budget and free memory, of the host and the device, admit a copy of a size."""
    if size <= 16 * MIB:
        return True
    if size > 64 * MIB + 1 and bench.target.budget < SMALL_BUDGET:
        return False
    host = live.collect().memory.available_bytes
    free = bench.observe(looks.capacity, device=index(bench))
    return (host is None or host >= _TIMES * size) and free["free"] + free["pooled"] >= 3 * size


def not_visited(sizes: Sequence[int]) -> str:
    """What an observation says of sizes that were not tried."""
    if not sizes:
        return ""
    listed = ", ".join(map(str, sizes))
    return f"not visited, for want of memory or budget: copies of {listed} bytes"


def judge_trip(
    seen: Mapping[str, Any], data: bytes, what: str, *, offset: int = 0, host_offset: int = 0
) -> None:
    """Raises a Failure unless both sides hold the bytes, and nothing beside them changed."""
    poison, guard = bytes([looks.HOST_POISON]), looks.GUARD
    memory = seen["memory"]
    if memory is not None:
        behind = len(memory) - offset - len(data)
        around = bytes([looks.DEVICE_POISON])
        expect_bytes(memory[:offset], around * offset, f"{what}: device memory before it")
        expect_bytes(
            memory[offset + len(data) :], around * behind, f"{what}: device memory behind it"
        )
        expect_bytes(memory[offset : offset + len(data)], data, f"{what}: device memory")
    back, end = seen["back"], host_offset + len(data)
    if not back.startswith(data, host_offset):  # which copies nothing
        expect_bytes(back[host_offset:end], data, what)
    expect_bytes(back[:host_offset], poison * host_offset, f"{what}: the host's memory before it")
    expect_bytes(back[end:], poison * guard, f"{what}: the host's memory behind it")
    if not seen["kept"]:
        raise Failure(f"{what}: the source to be as it was", "the copy has changed it")


FIXED: Final = ((0, 1), (1, 63), (63, 65), (64, PAGE), (4095, 2), (8191, 1))
"""(offset, length)."""


def _offsets(target: Target) -> Iterator[Case]:
    yield Case("about 64 and 4096", {"places": [(a, b, 8192 - a - b) for a, b in FIXED]})
    for number in range(4):
        draw = chance(target, "offset", number)
        yield Case(f"drawn-{number}", {"places": [_place(draw, number) for _ in range(4)]})


def _place(draw: random.Random, number: int) -> tuple[int, int, int]:
    """(offset, length, bytes behind), the farther out the greater the number."""
    far = (PAGE, 1 << 16, 1 << 20, 1 << 22)[number]
    offset = max(0, draw.choice((far + draw.randrange(-3, 4), draw.randrange(far // 2, 2 * far))))
    length = draw.choice((between(draw, 1, 64), between(draw, 64, 1 << 17), 512 * 3 - 1))
    return offset | draw.randrange(2), length, draw.choice((1, 7, 63, 64, 600))


@rule(
    "L1.copy.offset",
    summary="a copy at an offset touches its own bytes and no other, wherever it begins",
    why="Blocks of the KV cache lie side by side. A copy that is rounded to the link's granule "
    "overwrites the neighbour's first tokens, and an offset that is kept in too few bits goes to "
    "another block. Offsets are odd and even, small and beyond 16 and 20 bits, drawn in each run.",
    cases=_offsets,
    needs=("L1.copy.round_trip",),
)
def check_offset(bench: Bench, case: Case) -> None:
    """Writes and reads a part, and looks at all the rest."""
    for offset, length, beside in case.params["places"]:
        data = content((bench.target.seed, "offset", offset), length)
        seen = bench.observe(
            looks.trip, device=index(bench), data=data, offset=offset, beside=beside
        )
        judge_trip(seen, data, f"{length} bytes at offset {offset}", offset=offset)


def _host_places(target: Target) -> Iterator[Case]:
    draw = chance(target, "host")
    sizes = [draw.randrange(64, 512), draw.randrange(512, PAGE), between(draw, PAGE, 1 << 20)]
    yield Case(
        "odd addresses", {"places": [(1 + 2 * i, size, "B") for i, size in enumerate(sizes)]}
    )
    more = [(draw.randrange(1, 64), between(draw, 1, 1 << 16), "B") for _ in range(6)]
    yield Case("drawn addresses", {"places": more})
    formats = [(8, draw.randrange(9, 2000) * 8, name) for name in "fdHi"]
    yield Case("elements of several bytes", {"places": formats})


@rule(
    "L1.copy.host",
    summary="the host's buffer may begin anywhere, and hold elements of several bytes",
    why="Weights lie in their file where the header ends, at any byte, and arrive as a view of "
    "floats or of bytes. A copy that takes the address of the word, or counts elements for bytes, "
    "shifts or shortens them; one that fills up words writes over what lies behind the buffer.",
    cases=_host_places,
    needs=("L1.copy.round_trip",),
)
def check_host(bench: Bench, case: Case) -> None:
    """Both ends on the host begin at an offset of a larger buffer, whose rest is looked at."""
    for host_offset, size, format in case.params["places"]:
        data = content((bench.target.seed, "host", host_offset), size)
        seen = bench.observe(
            looks.trip, device=index(bench), data=data, host_offset=host_offset, format=format
        )
        what = f"{size} bytes (format {format}) at byte {host_offset} of the host's buffer"
        judge_trip(seen, data, what, host_offset=host_offset)
