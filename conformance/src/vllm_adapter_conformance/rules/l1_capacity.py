"""L1: how much memory a device has, how much of it is free, and what happens at its end."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
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
from vllm_adapter_conformance.device_side import looks
from vllm_adapter_conformance.device_side.capacity import (
    ASKED,
    capacities_asked,
    exhausted,
    falls_and_rises,
    system_free,
    told_and_true,
    too_large,
)
from vllm_adapter_conformance.rules._drawn import MIB, content
from vllm_adapter_conformance.rules._expect import (
    descriptor,
    expect_bytes,
    expect_refused,
    index,
    torch_type,
)

HUGE: Final = 1 << 62
PIECES, PIECE = 3, 24 * MIB
ROUNDS: Final = 5
WRITTEN: Final = 256 * MIB
NEAR: Final = 384 * MIB
"""How far the host's free memory may be from what the system says at another moment."""
STIRRED: Final = 48 * MIB
"""A change of the system's figure that must be seen."""
LEAST: Final = 0.9
"""The share of what is said to be free that allocations can have in all."""
SMALLEST: Final = MIB
_POOL: Final = (
    "A runtime that keeps freed memory in a pool says so: MemoryCapacity.pooled_bytes is what the "
    "pool holds. A C library whose pool cannot tell declares its steps in memory.free_step_bytes."
)


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
    tried = bench.observe(capacities_asked, device=index(bench))
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
    if stands_in and system_free() < 2 * available:
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
