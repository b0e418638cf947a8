"""L1: what was taken is given back: memory, and the handles of streams, events and files."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import (
    Case,
    Failure,
    NotDeclaredCase,
    Observation,
    once,
    rule,
)
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.leaks import (
    BLOCKS,
    CALLS,
    counted,
    growth,
    used_by_round,
)
from vllm_adapter_conformance.rules._drawn import MIB, between, chance
from vllm_adapter_conformance.rules._expect import (
    index,
)
from vllm_adapter_conformance.rules._streams import has_streams

SMALL: Final = 256
LARGE: Final = 64
ROUNDS, PIECE = 6, 32 * MIB
MOST: Final = {
    "file descriptors": CALLS // 8,
    "threads": CALLS // 8,
    "bytes of malloc": CALLS * 24,
    "Python objects": CALLS // 2,
    "allocations of the device": CALLS // 8,
    "bytes of the device": CALLS * 64,
}
"""Growth in a block of CALLS calls above which something is left behind by each call."""


def _leaks(target: Target) -> Iterator[Case]:
    yield Case(f"{LARGE} x 1 MiB", {"count": LARGE, "size": MIB})
    yield Case(f"{SMALL} x 256 bytes", {"count": SMALL, "size": 256})
    draw = chance(target, "leak")
    count = draw.randrange(20, 90)
    yield Case("drawn", {"count": count, "size": between(draw, 1000, 2 * MIB)})


@rule(
    "L1.memory.leak",
    summary="what is freed is given back: the runtime's figures rise by what is held, and return "
    "to the start",
    why="A server runs for weeks. What each request leaves behind ends it, at night. The figures "
    "are the framework's own where it keeps some.",
    cases=_leaks,
    needs=("L1.memory.allocate",),
)
def check_leak(bench: Bench, case: Case) -> Observation:
    """Allocates and frees many, one after the other and all at a time."""
    count, size = case.params["count"], case.params["size"]
    seen = bench.observe(counted, device=index(bench), count=count, size=size)
    (bytes_before, live_before), (bytes_full, live_full) = seen["before"], seen["full"]
    if bytes_full - bytes_before < count * size:
        raise Failure(
            f"at least {count * size} bytes more in use while they are held",
            f"{bytes_full - bytes_before}",
        )
    if live_full - live_before != count:
        raise Failure(
            f"{count} live allocations more while they are held", f"{live_full - live_before}"
        )
    if seen["after"] != seen["before"]:
        raise Failure(
            f"{bytes_before} bytes in {live_before} allocations, as before",
            f"{seen['after'][0]} bytes in {seen['after'][1]}",
        )
    return Observation(note=f"by {seen['source']}")


@rule(
    "L1.memory.returned",
    summary="what is freed is given back: the system's figure does not grow from round to round",
    why="A runtime can count well and still keep the memory. Here the driver is asked (for a "
    "device that is the host: what the process has written and holds). A cache of freed blocks is "
    "fine, since it is used again in the next round.",
    cases=once,
    needs=("L1.copy.round_trip", "L1.memory.leak"),
)
def check_returned(bench: Bench, case: Case) -> Observation:
    """Fills and frees one piece in each of six rounds; a leak grows by that much in each.

    The middle of the rounds' growths is judged: others use the device, and this process, too,
    and may give back a lot in one round.
    """
    used = bench.observe(used_by_round, device=index(bench), rounds=ROUNDS, size=PIECE)
    growth = int(statistics.median(after - before for before, after in itertools.pairwise(used)))
    if growth > PIECE // 2:
        raise Failure(
            f"about the same bytes in use after each round of {PIECE}",
            f"{growth} bytes more after a round (median of {ROUNDS - 1})",
        )
    return Observation(note=f"{growth} bytes more after a round (median of {ROUNDS - 1})")


def _slopes(target: Target) -> Iterator[Case | NotDeclaredCase]:
    draw = chance(target, "slope")
    for name, size in (
        ("small allocations", between(draw, 1, 2048)),
        ("larger allocations", between(draw, 8192, MIB // 4)),
        ("copies", between(draw, 4097, 1 << 16)),
        ("refused copies", 100),
        ("pinned memory", between(draw, 4097, 1 << 16)),
    ):
        yield Case(name, {"size": size})
    for name in ("streams", "events"):
        if has_streams(target):
            yield Case(name, {"size": between(draw, 1, 1024)})
        else:
            yield NotDeclaredCase(name, "/identity/torch_type", "the CPU has no streams")


@rule(
    "L1.memory.slope",
    summary="calls that give back what they took leave nothing, however many there are",
    why="64 bytes a call are a gigabyte in a day, and file descriptors, threads or handles that "
    "stay end a server after a few thousand requests, with an error about something else. Files, "
    "threads, allocations of the C library and of Python, and the device's own figures are "
    "counted over hundreds of calls: what grows with each block of calls is left behind by them. "
    "Release what a call made in the same call, and handles with their last owner.",
    cases=_slopes,
    needs=("L1.memory.allocate", "L1.copy.round_trip", "L1.memory.leak"),
    seconds=120.0,
)
def check_slope(bench: Bench, case: Case) -> Observation:
    """Makes blocks of calls, the first of them to fill caches, and judges the least growth."""
    size = case.params["size"]
    seen = bench.observe(growth, device=index(bench), kind=case.id, size=size)
    grown = {name: least_growth(seen, name) for name in seen[0]}
    for name, more in grown.items():
        if more > MOST[name]:
            raise Failure(
                f"no more {name} after {CALLS} calls than before ({case.id} of {size} bytes)",
                f"at least {more} more after each of {BLOCKS} times {CALLS} calls",
            )
    return Observation(note=", ".join(f"{name} {more:+d}" for name, more in grown.items() if more))


def least_growth(seen: Sequence[Mapping[str, int]], name: str) -> int:
    """The least growth of a figure from one block to the next."""
    return min(after[name] - before[name] for before, after in itertools.pairwise(seen))
