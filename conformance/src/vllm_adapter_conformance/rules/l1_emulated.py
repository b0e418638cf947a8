"""L1: what an emulated device owes to those who test on it: faults of their code must show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules._memory import allocated, index, pattern, read
from vllm_adapter_conformance.rules.l1_stream import BULK, emptied, has_streams, pinned

TRIES: Final = 5
FRESH: Final = 65536


def _fresh(target: Target) -> Iterator[Case | NotDeclaredCase]:
    if target.emulated:
        yield Case("fresh memory")
    else:
        yield NotDeclaredCase("fresh memory", "/emulated", "on a real device it may hold anything")


@rule(
    "L1.emulated.fresh",
    summary="fresh memory of an emulated device is not zero",
    why="Code that takes an empty tensor for zeros is right on a simulator that gives zeros, and "
    "wrong on the chip. Fill what is handed out with a pattern that no model likes.",
    cases=_fresh,
    needs=("L1.copy.round_trip",),
)
def check_fresh(bench: Bench, case: Case) -> Observation:
    """Reads memory that nobody wrote, twice, the second time over memory that held zeros."""
    for turn in range(2):
        with allocated(bench, FRESH) as memory:
            seen = read(bench, memory)
            if seen.count(0) > len(seen) // 2:
                raise Failure(
                    "fresh memory filled with a pattern",
                    f"{seen.count(0)} of {len(seen)} bytes are zero (allocation {turn})",
                )
            host = memoryview(bytearray(FRESH))
            bench.runtime.copy_host_to_device(memory, host)
    return Observation(note=f"filled with {seen[:4].hex()}")


def _late(target: Target) -> Iterator[Case | NotDeclaredCase]:
    if target.emulated and has_streams(target):
        yield Case("copies on a stream")
    else:
        reason = "a real device may be done at any time"
        yield NotDeclaredCase("copies on a stream", "/emulated", reason)


@rule(
    "L1.emulated.late",
    summary="work on a stream of an emulated device is done later, so that a missing wait shows",
    why="A simulator that does everything at once hides each wait that is missing, and the first "
    "real chip finds them all. Run a stream's work on a thread of its own.",
    cases=_late,
    needs=("L1.stream.wait",),
)
def check_late(bench: Bench, case: Case) -> Observation:
    """Looks at a long copy's end without waiting; busy machines get several tries."""
    runtime, device = bench.runtime, index(bench)
    data = pattern(bench, BULK, "late")
    with allocated(bench, BULK) as memory:
        stream = runtime.create_stream(device)
        source = pinned(bench, data)
        for number in range(TRIES):
            back = emptied(bench, BULK)
            runtime.copy_host_to_device(memory, source, stream=stream)
            runtime.copy_device_to_host(memory, back, stream=stream)
            early = bytes(back[-64:])
            runtime.synchronize_stream(device, stream)
            if early != data[-64:]:
                return Observation(note=f"seen at try {number + 1}")
    raise Failure("old bytes for who does not wait", f"the new ones, in each of {TRIES} tries")
