"""L1: how much memory a device has, how much of it is free, and what happens at its end."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import OutOfMemory
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
from vllm_adapter_conformance.rules._drawn import MIB, content
from vllm_adapter_conformance.rules._memory import (
    descriptor,
    expect_bytes,
    expect_refused,
    index,
    torch_type,
)

HUGE: Final = 1 << 62
ASKED: Final = 5
PIECES, PIECE = 3, 24 * MIB
ROUNDS: Final = 5
WRITTEN: Final = 256 * MIB
NEAR: Final = 384 * MIB
"""How far the host's free memory may be from what the system says at another moment."""
STIRRED: Final = 48 * MIB
"""A change of the system's figure that must be seen."""
TRIES: Final = 8
LEAST: Final = 0.9
"""The share of what is said to be free that allocations can have in all."""
SMALLEST: Final = MIB
MOST_PIECES: Final = 4096
MARK: Final = 64
_POOL: Final = (
    "A runtime that keeps freed memory in a pool says so: MemoryCapacity.pooled_bytes is what the "
    "pool holds. A C library whose pool cannot tell declares its steps in memory.free_step_bytes."
)


def capacities(bench: Bench, *, device: int, times: int) -> list[dict[str, Any]]:
    """The figures, asked several times."""
    return [looks.capacity(bench, device=device) for _ in range(times)]


@rule(
    "L1.memory.capacity",
    summary="the reported memory is right: total above zero and steady, free within it, unified "
    "as declared",
    why="The KV cache is sized by these figures, on the machine and not in the datasheet. A free "
    "figure above the total overcommits, a total that changes gives each rank another cache; a "
    "wrong `unified` counts the host's memory twice.",
    cases=once,
    needs=("L1.device.open",),
)
def check_capacity(bench: Bench, case: Case) -> Observation:
    """Asks for bytes in all and free, several times."""
    tried = bench.observe(_asked, device=index(bench))
    if "kinds" in tried:
        raise Failure("query_memory_capacity to answer", f"{tried['kinds'][0]}: {tried['said']}")
    found = tried["found"]
    for seen in found:
        held = seen["free"] + seen["pooled"]
        if seen["total"] <= 0 or min(seen["free"], seen["pooled"]) < 0 or held > seen["total"]:
            raise Failure("0 < total and 0 <= free and pooled bytes <= total", _text(seen))
    totals = {seen["total"] for seen in found}
    if len(totals) > 1:
        raise Failure(f"one total in {ASKED} answers", f"{sorted(totals)}")
    declared = descriptor(bench).memory.unified
    if declared is not None and found[0]["unified"] != declared:
        raise Failure(
            f"unified to be {declared}, as the descriptor says", str(found[0]["unified"])
        )
    return Observation(note=_text(found[-1]))


def _asked(bench: Bench, *, device: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    tried = looks.attempt(lambda: found.extend(capacities(bench, device=device, times=ASKED)))
    return tried | {"found": found}


def _text(seen: Mapping[str, Any]) -> str:
    pool = f", {seen['pooled']} in the runtime's pool" if seen["pooled"] else ""
    return f"{seen['free']} of {seen['total']} bytes free{pool}"


def of_the_host(target: Target) -> bool:
    """Whether the device's memory is the host's own."""
    kind = target.device.torch.partition(":")[0] if target.device else None
    return kind == "cpu" or bool(target.capability and target.capability.memory.unified)


def _frees(target: Target) -> Iterator[Case | NotDeclaredCase]:
    if of_the_host(target):
        yield Case("as the system says")
        reason = "the memory is the host's, which others take and give back"
        yield NotDeclaredCase("this device", "/memory/unified", reason)
        yield NotDeclaredCase("another device", "/memory/unified", reason)
        return
    reason = "the memory is the device's own"
    yield NotDeclaredCase("as the system says", "/memory/unified", reason)
    yield Case("this device")
    if len(target.record.devices) > 1:
        yield Case("another device")
    else:
        yield NotDeclaredCase("another device", "/devices", "there is one device only")


def falls_and_rises(
    bench: Bench, *, device: int, watched: int, pieces: int, size: int, rounds: int
) -> list[dict[str, int]]:
    """What free and pooled bytes of `device` fall by and rise by, and those of `watched`."""

    def available(number: int) -> int:
        found = looks.capacity(bench, device=number)
        return int(found["free"]) + int(found["pooled"])

    runtime, seen = bench.runtime, []
    for _ in range(rounds):
        before, beside = available(device), available(watched)
        held = [runtime.allocate_memory(size, device) for _ in range(pieces)]
        for memory in held:
            looks.put(bench, memory, b"\1")
        during, beside_during = available(device), available(watched)
        for memory in held:
            memory.free()
        del held, memory
        runtime.synchronize_stream(device)
        after = available(device)
        seen.append(
            {
                "fall": before - during,
                "rise": after - during,
                "beside": beside - beside_during,
            }
        )
    return seen


def told_and_true(bench: Bench, *, device: int, written: int) -> list[list[int]]:
    """(free as the runtime says, free as this system says), some times while memory is written."""
    seen, held = [], []
    for _ in range(TRIES):
        seen.append([looks.capacity(bench, device=device)["free"], _system_free()])
        memory = bench.runtime.allocate_memory(written // TRIES, device)
        looks.fill(bench, memory, 1)
        held.append(memory)
    for memory in held:
        memory.free()
    return seen


def _system_free() -> int:
    """MemAvailable of Linux, in bytes; -1 where it cannot be read."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return -1
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else -1


@rule(
    "L1.memory.free",
    summary="free memory is true, and falls and rises by what is taken and given back",
    why="The KV cache takes what is free after the weights, and a server that is told of a second "
    "model asks again. A figure that is another device's, an old one, in another unit or without "
    "what is in use overcommits: out of memory under load, hours after the start. " + _POOL,
    cases=_frees,
    needs=("L1.memory.capacity", "L1.memory.allocate", "L1.copy.round_trip"),
)
def check_free(bench: Bench, case: Case) -> Observation:
    """Takes memory and gives it back, some times; the middle of what was seen is judged.

    Others use the device, and the host, too.
    """
    device = index(bench)
    if case.id == "as the system says":
        return _judge_host(bench, device)
    other = next((d.index for d in bench.target.record.devices if d.index != device), device)
    this, watched = (device, other) if case.id == "this device" else (other, device)
    declared = descriptor(bench).memory.free_step_bytes or 0
    step = 0 if bench.target.emulator else declared
    size = max(PIECE, step)
    free = bench.observe(looks.capacity, device=this)
    available = free["free"] + free["pooled"]
    while size > MIB and PIECES * size > available // 2:
        size //= 2
    taken = PIECES * size
    if step > taken // 2:
        return Observation(note=f"not visited: steps of {step} bytes show nothing")
    seen = bench.observe(
        falls_and_rises, device=this, watched=watched, pieces=PIECES, size=size, rounds=ROUNDS
    )
    slack = 4 * MIB + taken // 16 + step
    for way, word in (("fall", "less"), ("rise", "more")):
        moved = int(statistics.median(found[way] for found in seen))
        if not taken - slack <= moved <= taken + slack:
            what = "while they are held" if way == "fall" else "after they were given back"
            raise Failure(
                f"about {taken} bytes {word} free or pooled on device {this} {what}",
                f"{moved} {word} (the middle of {ROUNDS} rounds)",
                detail=_POOL,
            )
    beside = int(statistics.median(found["beside"] for found in seen))
    if this != watched and beside > taken // 2:
        raise Failure(
            f"device {watched} to keep its memory while {taken} bytes of device {this} are held",
            f"{beside} bytes less free on device {watched}",
        )
    return Observation(note=f"{taken} bytes were seen to go and to come back")


def _judge_host(bench: Bench, device: int) -> Observation:
    limit = bench.target.host.cgroup.memory_limit_bytes
    seen = bench.observe(told_and_true, device=device, written=WRITTEN)
    total = bench.observe(looks.capacity, device=device)["total"]
    true = [system for _, system in seen]
    if (
        torch_type(bench.target) != "cpu"
        or min(true) < 0
        or (limit is not None and limit <= max(true))
    ):
        return Observation(note="not visited: this system does not tell what is free for us")
    if max(true) - min(true) > STIRRED and len({told for told, _ in seen}) == 1:
        raise Failure(
            f"free memory that changes while {WRITTEN} bytes are written, as the system's does",
            f"{seen[0][0]} each time",
        )
    off = min(abs(told - min(system, total)) for told, system in seen)
    if off > NEAR:
        raise Failure(
            f"about {true[-1]} bytes free, as the system says", f"{seen[-1][0]} bytes free"
        )
    return Observation(note=f"{off} bytes from what the system says")


def too_large(bench: Bench, *, device: int, size: int | None, data: bytes) -> dict[str, Any]:
    """Asks for too much (None: one byte more than the total), then uses the device."""
    runtime = bench.runtime
    size = runtime.query_memory_capacity(device).total_bytes + 1 if size is None else size
    before = runtime.memory_stats(device)
    tried = looks.attempt(lambda: runtime.allocate_memory(size, device))
    after = runtime.memory_stats(device)
    memory = runtime.allocate_memory(len(data), device)
    looks.put(bench, memory, data)
    back = looks.get(bench, memory)
    memory.free()
    return {
        "size": size,
        "tried": tried,
        "before": [before.allocated_bytes, before.live_allocations],
        "after": [after.allocated_bytes, after.live_allocations],
        "back": back,
    }


def _too_large(target: Target) -> Iterator[Case]:
    yield Case("total + 1 bytes", {"size": None})
    yield Case("2^62 bytes", {"size": HUGE})


@rule(
    "L1.memory.out_of_memory",
    summary="more than there is raises OutOfMemory, and the device goes on",
    why="vLLM and the planner try sizes until one fits. A request that is granted and not there "
    "kills the process at its first use; one that leaves the device unusable ends the server.",
    cases=_too_large,
    needs=("L1.copy.round_trip", "L1.memory.capacity"),
)
def check_out_of_memory(bench: Bench, case: Case) -> None:
    """Asks for too much, then uses the device, and looks whether anything is still held."""
    data = content((bench.target.seed, "after out of memory"), 4097)
    seen = bench.observe(too_large, device=index(bench), size=case.params["size"], data=data)
    expect_refused(seen["tried"], OutOfMemory, f"{seen['size']} bytes, which is too much")
    if seen["after"] != seen["before"]:
        raise Failure(
            f"nothing to be held by the refusal: {seen['before']} (bytes, allocations)",
            str(seen["after"]),
        )
    expect_bytes(seen["back"], data, "a copy after the refusal")


def _exhaustions(target: Target) -> Iterator[Case | NotDeclaredCase]:
    if of_the_host(target):
        reason = "the memory is the host's: a system that runs out of it ends processes"
        yield NotDeclaredCase("to the end", "/memory/unified", reason)
    else:
        yield Case("to the end")


def exhausted(bench: Bench, *, device: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Allocates pieces of falling sizes until none is given, gives all back, and takes a quarter.

    Each piece is marked at both ends; what the marks read at the end is seen.
    """
    runtime = bench.runtime
    before = looks.capacity(bench, device=device)
    stats = runtime.memory_stats(device)
    held: list[Any] = []
    refused: dict[str, Any] = {}
    for size in sizes:
        while len(held) < MOST_PIECES:
            refused = looks.attempt(_take, bench, device, size, held)
            if "kinds" in refused:
                break
        if "OutOfMemory" not in refused.get("kinds", ()):
            break
    full = looks.capacity(bench, device=device)
    wrong = [
        number
        for number, memory in enumerate(held)
        for at in (0, memory.size - MARK)
        if looks.get(bench, memory, MARK, at) != number.to_bytes(MARK, "little")
    ]
    taken, count = sum(memory.size for memory in held), len(held)
    while held:
        held.pop().free()
    after = runtime.memory_stats(device)
    part = max(MARK, (before["free"] + before["pooled"]) // 4)
    again = looks.attempt(lambda: _marked(bench, device, part))
    empty_cache(bench)
    return {
        "before": before,
        "full": full,
        "taken": taken,
        "count": count,
        "refused": refused,
        "wrong": wrong,
        "stats": [[figure.allocated_bytes, figure.live_allocations] for figure in (stats, after)],
        "part": part,
        "again": again,
        "after": looks.capacity(bench, device=device),
    }


def _take(bench: Bench, device: int, size: int, held: list[Any]) -> None:
    """Allocates one piece more, and marks both its ends with its number."""
    memory, mark = bench.runtime.allocate_memory(size, device), len(held).to_bytes(MARK, "little")
    held.append(memory)
    looks.put(bench, memory, mark)
    looks.put(bench, memory, mark, size - MARK)


def _marked(bench: Bench, device: int, size: int) -> bool:
    """Whether a piece of memory holds a mark at its end; it is given back."""
    memory = bench.runtime.allocate_memory(size, device)
    try:
        looks.put(bench, memory, b"\7" * MARK, size - MARK)
        return looks.get(bench, memory, MARK, size - MARK) == b"\7" * MARK
    finally:
        memory.free()


def empty_cache(bench: Bench) -> None:
    """Gives torch's own pool back, where it has one: other processes need the memory, too."""
    import torch

    empty = getattr(getattr(torch, bench.device.type, None), "empty_cache", None)
    if empty is not None:
        empty()


@rule(
    "L1.memory.exhaust",
    summary="allocations can have what is said to be free, the end is OutOfMemory, and all of it "
    "can be given back and had again",
    why="A server fills its device on purpose. Where the end is another error, nobody catches it "
    "and tries less; where a refusal or a release loses memory, or freed pieces never join, the "
    "next model does not fit though the last one is gone.",
    cases=_exhaustions,
    needs=("L1.memory.out_of_memory", "L1.memory.free"),
    seconds=180.0,
)
def check_exhaust(bench: Bench, case: Case) -> Observation:
    """Takes all in pieces, then gives all back and takes a quarter in one piece."""
    device = index(bench)
    free = bench.observe(looks.capacity, device=device)
    available = free["free"] + free["pooled"]
    stands_in = bench.target.emulated or bench.target.emulator is not None
    if stands_in and _system_free() < 2 * available:
        return Observation(note="not visited: an emulated device's memory is this host's")
    sizes, size = [], max(available // 16, SMALLEST)
    while size >= SMALLEST:
        sizes.append(size)
        size //= 2
    seen = bench.observe(exhausted, device=device, sizes=sizes)
    taken = seen["taken"]
    expect_refused(seen["refused"], OutOfMemory, f"one piece more after {taken} bytes")
    if taken < LEAST * available or taken > free["total"]:
        raise Failure(
            f"allocations of {int(LEAST * available)} to {free['total']} bytes in all, as "
            f"{available} are said to be free",
            f"{taken} bytes in {seen['count']} pieces",
        )
    if seen["wrong"]:
        raise Failure("each piece to hold its own mark", f"others in pieces {seen['wrong'][:8]}")
    step = descriptor(bench).memory.free_step_bytes or 0
    left = seen["full"]["free"] + seen["full"]["pooled"]
    if left > (1 - LEAST) * available + step:
        raise Failure(
            "nearly nothing to be free when no piece is given any more", f"{left} bytes free"
        )
    if seen["stats"][0] != seen["stats"][1]:
        raise Failure(
            f"{seen['stats'][0]} (bytes, allocations) in use when all was given back, as before",
            str(seen["stats"][1]),
        )
    if seen["again"] != {"gave": "True"}:
        raise Failure(
            f"{seen['part']} bytes in one piece when all was given back",
            seen["again"].get("said", "other bytes than were written at its end"),
        )
    end = seen["after"]["free"] + seen["after"]["pooled"]
    if end < LEAST * available - step:
        raise Failure(f"about {available} bytes free at the end, as before", f"{end} bytes")
    return Observation(note=f"{taken} bytes in {seen['count']} pieces, of {free['total']}")
