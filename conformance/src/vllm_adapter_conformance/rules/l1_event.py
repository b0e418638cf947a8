"""L1: events: marks in a stream that are asked, waited for and timed, again and again."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from typing import Any

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.event import (
    PAUSES_S,
    POLL_S,
    TIMES,
    TRIES,
    asked,
    ordered,
    synchronized,
    timed,
)
from vllm_adapter_conformance.rules._drawn import chance, content
from vllm_adapter_conformance.rules._expect import expect_bytes, index
from vllm_adapter_conformance.rules._streams import has_streams


def cases_of(*names: str) -> Any:
    """The cases of a rule about events."""

    def cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
        for name in names:
            if has_streams(target):
                yield Case(name)
            else:
                yield NotDeclaredCase(name, "/identity/torch_type", "the CPU has no streams")

    return cases


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
    passed = [1e3 * seconds for seconds in itertools.accumulate(PAUSES_S)]
    for least, ms in zip(passed, seen["again"], strict=True):
        if ms < 0.9 * least:
            raise Failure(
                f"at least {least:.0f} ms between a first event and one that was recorded again "
                "after so long a pause",
                f"{ms} ms",
            )
    return Observation(note=f"{few:.3f} and {many:.3f} ms")
