"""L1: events: marks in a stream that are asked, waited for and timed, again and again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules import _looks as looks
from vllm_adapter_conformance.rules._drawn import chance, content
from vllm_adapter_conformance.rules._memory import expect_bytes, index
from vllm_adapter_conformance.rules._torch_streams import (
    Work,
    emptied,
    has_streams,
    pinned,
    timed_event,
)

LONG: Final = 4
"""Copies that take so long that a mark behind them is not reached at once."""
TRIES: Final = 6
"""A busy machine may keep this process away until the work is done: then it is tried again."""
POLL_S: Final = 5.0
PAUSE_S: Final = 0.04
TIMED: Final = 4 << 20
TIMES: Final = (1, 12)
"""Copies between two marks, few and many."""


def cases_of(*names: str) -> Any:
    """The cases of a rule about events."""

    def cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
        for name in names:
            if has_streams(target):
                yield Case(name)
            else:
                yield NotDeclaredCase(name, "/identity/torch_type", "the CPU has no streams")

    return cases


def asked(bench: Bench, *, device: int, data: bytes, again: bool) -> list[dict[str, Any]]:
    """What an event behind long work and a copy to the host says, and what the host holds then.

    It is asked at once, after a wait, and then another one in a loop. With `again` the event was
    reached before and is set anew.
    """
    runtime, size, seen = bench.runtime, len(data), []
    stream: Any = runtime.create_stream(device)
    work, memory = Work(bench, device), runtime.allocate_memory(size, device)
    looks.put(bench, memory, data)
    for _ in range(TRIES):
        event, other = (timed_event(bench, device, stream) for _ in range(2))
        back = emptied(bench, size)
        if again:
            event.record(stream)
            event.synchronize()
        work.queue(stream, LONG)
        runtime.copy_device_to_host(memory, back, stream=stream)
        event.record(stream)
        at_once = bool(event.query())
        held = bytes(back)
        event.synchronize()
        after = bool(event.query())
        work.queue(stream, 1)
        other.record(stream)
        until = time.monotonic() + POLL_S
        while not (polled := bool(other.query())) and time.monotonic() < until:
            time.sleep(0.0005)
        runtime.synchronize_stream(device, stream)
        seen.append({"at once": at_once, "held": held, "after": after, "polled": polled})
    memory.free()
    work.free()
    return seen


@rule(
    "L1.event.query",
    summary="an event says that it is not reached while work before it runs, and that it is after",
    why="A scheduler asks events instead of waiting. One that always says yes hands out blocks "
    "that are still copied; one that is only reached when somebody waits for it stops the server; "
    "one that stays reached when it is recorded anew says yes for the step before. A device that "
    "does its work while it is queued may say yes at once: then the work must be done.",
    cases=cases_of("first record", "recorded again"),
    needs=("L1.stream.wait",),
)
def check_query(bench: Bench, case: Case) -> Observation:
    """Asks right behind long work, after a wait, and in a loop."""
    size = chance(bench.target, "event query").randrange(64, 1 << 16)
    data = content((bench.target.seed, "event query"), size)
    again = case.id == "recorded again"
    seen = bench.observe(asked, device=index(bench), data=data, again=again)
    for found in seen:
        if found["at once"]:
            expect_bytes(
                found["held"], data, "what was copied back before an event that is reached"
            )
        if not found["after"]:
            raise Failure("an event to be reached after its synchronize()", "not reached")
        if not found["polled"]:
            raise Failure(f"an event to be reached when its work is done, within {POLL_S} s", "no")
    early = sum(not found["at once"] for found in seen)
    return Observation(note=f"not reached at once in {early} of {TRIES} tries")


def synchronized(bench: Bench, *, device: int, data: bytes, again: bool) -> list[bytes]:
    """What the host holds right after the wait for an event behind a copy to it, some times."""
    runtime, size, seen = bench.runtime, len(data), []
    stream: Any = runtime.create_stream(device)
    work, memory = Work(bench, device), runtime.allocate_memory(size, device)
    looks.put(bench, memory, data)
    event = timed_event(bench, device, stream)
    if again:
        event.record(stream)
        event.synchronize()
    for _ in range(2):
        back = emptied(bench, size)
        work.queue(stream, LONG)
        runtime.copy_device_to_host(memory, back, stream=stream)
        event.record(stream)
        event.synchronize()
        seen.append(bytes(back))
        runtime.synchronize_stream(device, stream)
    memory.free()
    work.free()
    return seen


@rule(
    "L1.event.wait",
    summary="when the wait for an event returns, all that was queued before its record is done",
    why="The host reads a step's tokens after such a wait, with the same event in each step. One "
    "that returns early, or at the event's first record, gives the tokens of the step before.",
    cases=cases_of("first record", "recorded again"),
    needs=("L1.stream.wait",),
)
def check_wait(bench: Bench, case: Case) -> None:
    """Waits for an event behind long work and a copy to the host, and looks at once."""
    size = chance(bench.target, "event wait").randrange(1, 1 << 16)
    data = content((bench.target.seed, "event wait"), size)
    seen = bench.observe(
        synchronized, device=index(bench), data=data, again=case.id == "recorded again"
    )
    for number, got in enumerate(seen):
        expect_bytes(got, data, f"what was copied back before record {number + 1} of an event")


def ordered(bench: Bench, *, device: int, data: bytes) -> bytes:
    """What a second stream copies back when it waits for an event's second record on the first."""
    runtime, size = bench.runtime, len(data)
    first: Any = runtime.create_stream(device)
    second: Any = runtime.create_stream(device)
    work, memory = Work(bench, device), runtime.allocate_memory(size, device)
    looks.fill(bench, memory)
    host, back = pinned(bench, data), emptied(bench, size)
    event = timed_event(bench, device, first)
    event.record(first)
    event.synchronize()
    work.queue(first, LONG)
    runtime.copy_host_to_device(memory, host, stream=first)
    event.record(first)
    second.wait_event(event)
    runtime.copy_device_to_host(memory, back, stream=second)
    runtime.synchronize_stream(device, second)
    seen = bytes(back)
    runtime.synchronize_stream(device, first)
    memory.free()
    work.free()
    return seen


@rule(
    "L1.event.order",
    summary="a stream that waits for an event waits for its last record",
    why="One event marks the end of a block's copy in each step. A wait for an older record lets "
    "the kernels read the block before it has come.",
    cases=cases_of("recorded again"),
    needs=("L1.stream.event",),
)
def check_order(bench: Bench, case: Case) -> None:
    """Records an event twice, long work between, and lets another stream wait."""
    size = chance(bench.target, "event order").randrange(1, 8193)
    data = content((bench.target.seed, "event order"), size)
    seen = bench.observe(ordered, device=index(bench), data=data)
    expect_bytes(seen, data, "what the other stream copied in before the event's second record")


def timed(bench: Bench, *, device: int) -> dict[str, list[float]]:
    """Milliseconds between marks around nothing, little and much work, and by the host's clock."""
    stream: Any = bench.runtime.create_stream(device)
    work = Work(bench, device, TIMED)
    seen: dict[str, list[float]] = {name: [] for name in ("few", "many", "host", "empty", "again")}
    for _ in range(TRIES):
        for times, found in zip(TIMES, ("few", "many"), strict=True):
            start, end = (timed_event(bench, device, stream) for _ in range(2))
            bench.runtime.synchronize_stream(device, stream)
            began = time.perf_counter()
            start.record(stream)
            work.queue(stream, times)
            end.record(stream)
            end.synchronize()
            seen[found].append(float(start.elapsed_time(end)))
        seen["host"].append((time.perf_counter() - began) * 1e3)
        start.record(stream)
        end.record(stream)
        end.synchronize()
        seen["empty"].append(float(start.elapsed_time(end)))
    first, later = (timed_event(bench, device, stream) for _ in range(2))
    for event in (first, later):
        event.record(stream)
        event.synchronize()
    for _ in range(3):
        time.sleep(PAUSE_S)
        later.record(stream)
        later.synchronize()
        seen["again"].append(float(first.elapsed_time(later)))
    work.free()
    return seen


@rule(
    "L1.event.time",
    summary="the time between two events is in milliseconds, never negative, and grows with work",
    why="Kernels are chosen, and a server's load is judged, by these times. A constant, another "
    "unit, the host's time of the record or that of an older record choose the slower kernel; a "
    "negative one ends as a huge number.",
    cases=cases_of("elapsed"),
    needs=("L1.event.query",),
)
def check_time(bench: Bench, case: Case) -> Observation:
    """Times little and much work, nothing, and a pause; the host's clock is an upper bound."""
    seen = bench.observe(timed, device=index(bench))
    everything = [ms for name in ("few", "many", "empty", "again") for ms in seen[name]]
    if min(everything) < 0:
        raise Failure("no negative time between two events", f"{min(everything)} ms")
    few, many = (statistics.median(seen[name]) for name in ("few", "many"))
    if not many > few:
        raise Failure(
            f"more time for {TIMES[1]} copies than for {TIMES[0]}", f"{many} ms and {few} ms"
        )
    share = max(
        on_device / host for on_device, host in zip(seen["many"], seen["host"], strict=True)
    )
    if share < 1 / 3:
        raise Failure(
            f"{TIMES[1]} copies to take about as long by events as by the host's clock",
            f"{share:.3g} of it at most, in {TRIES} tries",
        )
    over = min(
        on_device - host for on_device, host in zip(seen["many"], seen["host"], strict=True)
    )
    if over > 1:
        raise Failure("no more time on the device than on the host", f"{over} ms more at least")
    pause = PAUSE_S * 1e3
    for number, ms in enumerate(seen["again"], 1):
        if ms < 0.9 * number * pause:
            raise Failure(
                f"at least {number * pause:.0f} ms between a first event and one that was "
                f"recorded again after {number} pauses",
                f"{ms} ms",
            )
    return Observation(note=f"{few:.3f} and {many:.3f} ms")
