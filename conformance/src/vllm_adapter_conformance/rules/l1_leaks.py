"""L1: what was taken is given back: memory, and the handles of streams, events and files."""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

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
from vllm_adapter_conformance.rules import _looks as looks
from vllm_adapter_conformance.rules._drawn import MIB, between, chance
from vllm_adapter_conformance.rules._memory import (
    held_by_process,
    index,
    malloc_bytes,
)
from vllm_adapter_conformance.rules._torch_streams import has_streams, timed_event

SMALL: Final = 256
LARGE: Final = 64
ROUNDS, PIECE = 6, 32 * MIB
BLOCKS: Final = 3
"""Blocks of calls, of which the least growth counts: what grows once is no leak."""
CALLS: Final = 192
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


def counted(bench: Bench, *, device: int, count: int, size: int) -> dict[str, Any]:
    """The runtime's figures before, while and after many allocations are held."""
    runtime = bench.runtime

    def figures() -> list[Any]:
        found = runtime.memory_stats(device)
        return [found.allocated_bytes, found.live_allocations]

    before = figures()
    for _ in range(count):
        runtime.allocate_memory(size, device).free()
    held = [runtime.allocate_memory(size, device) for _ in range(count)]
    full = figures()
    for memory in held:
        memory.free()
    source = runtime.memory_stats(device).source
    return {"before": before, "full": full, "after": figures(), "source": source}


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


def used_by_round(bench: Bench, *, device: int, rounds: int, size: int) -> list[int]:
    """Bytes in use after each round in which one piece was filled and freed.

    They are the driver's, or what this process holds where the device is the host.
    """
    data, used = bytes([1]) * size, []
    gc.collect()  # garbage of earlier cases, given back between two rounds, would hide a leak
    for _ in range(rounds):
        memory = bench.runtime.allocate_memory(size, device)
        looks.put(bench, memory, data)
        memory.free()
        del memory
        if bench.device.type == "cpu":
            used.append(held_by_process())
        else:
            found = bench.runtime.query_memory_capacity(device)
            used.append(found.total_bytes - found.free_bytes)
    return used


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


def growth(bench: Bench, *, device: int, kind: str, size: int) -> list[dict[str, int]]:
    """What this process and the device hold after each of some blocks of calls."""
    call = _CALLS[kind](bench, device, size)
    seen = []
    gc.collect()
    for _ in range(BLOCKS + 1):
        for _ in range(CALLS):
            call()
        bench.runtime.synchronize_stream(device)
        gc.collect(1)  # what these calls left; all of it takes a tenth of a second
        seen.append(_held(bench, device))
    return seen


def _held(bench: Bench, device: int) -> dict[str, int]:
    stats = bench.runtime.memory_stats(device)
    return {
        "file descriptors": _entries("/proc/self/fd"),
        "threads": _entries("/proc/self/task"),
        "bytes of malloc": malloc_bytes() or 0,
        "Python objects": sys.getallocatedblocks(),
        "allocations of the device": stats.live_allocations,
        "bytes of the device": stats.allocated_bytes,
    }


def _entries(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:  # another system than Linux
        return 0


def _allocations(bench: Bench, device: int, size: int) -> Callable[[], object]:
    return lambda: bench.runtime.allocate_memory(size, device).free()


def _copies(bench: Bench, device: int, size: int) -> Callable[[], object]:
    memory, host = bench.runtime.allocate_memory(size, device), memoryview(bytearray(size))

    def call() -> None:
        bench.runtime.copy_host_to_device(memory, host)
        bench.runtime.copy_device_to_host(memory, host)

    return call


def _refusals(bench: Bench, device: int, size: int) -> Callable[[], object]:
    memory, host = bench.runtime.allocate_memory(size, device), memoryview(bytearray(size))
    return lambda: looks.attempt(
        lambda: bench.runtime.copy_host_to_device(memory, host, offset=size)
    )


def _pinned(bench: Bench, device: int, size: int) -> Callable[[], object]:
    def call() -> None:
        bench.runtime.allocate_pinned_memory(size).release()

    return call


def _streams(bench: Bench, device: int, size: int) -> Callable[[], object]:
    runtime = bench.runtime
    memory, host = runtime.allocate_memory(size, device), memoryview(bytearray(size))

    def call() -> None:
        stream = runtime.create_stream(device)
        runtime.copy_host_to_device(memory, host, stream=stream)
        runtime.synchronize_stream(device, stream)

    return call


def _events(bench: Bench, device: int, size: int) -> Callable[[], object]:
    stream: Any = bench.runtime.create_stream(device)

    def call() -> None:
        for _ in range(3):
            event = timed_event(bench, device, stream)
            event.record(stream)
            event.synchronize()

    return call


_CALLS: Final[Mapping[str, Callable[[Bench, int, int], Callable[[], object]]]] = {
    "small allocations": _allocations,
    "larger allocations": _allocations,
    "copies": _copies,
    "refused copies": _refusals,
    "pinned memory": _pinned,
    "streams": _streams,
    "events": _events,
}


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
