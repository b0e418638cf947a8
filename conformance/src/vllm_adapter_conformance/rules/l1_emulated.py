"""L1: what an emulated device owes to those who test on it: faults of their code must show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.emulated import TRIES, fresh, late, with_fault
from vllm_adapter_conformance.device_side.torch_streams import BULK
from vllm_adapter_conformance.rules._drawn import content
from vllm_adapter_conformance.rules._expect import index
from vllm_adapter_conformance.rules._streams import has_streams

FRESH: Final = 65536
FAULTS: Final = {
    "failed work": "corrupt@1+",
    "a lost device": "lost@1",
    "no memory": "oom@1",
}
"""SIM_FAULT by what happens."""
_FAILED, _LOST, _OUT = "LaunchFailed", "DeviceLost", "OutOfMemory"
WANTED: Final = {
    "failed work": {"allocate": None, "copy": None, "wait": _FAILED, "allocate again": None},
    "a lost device": {
        "allocate": None,
        "wait": _LOST,
        "allocate again": _LOST,
        "copy again": _LOST,
        "wait again": _LOST,
        "memory_info": _LOST,
        "stream_create": _LOST,
    },
    "no memory": {"allocate": _OUT, "allocate again": None, "copy again": None},
}
"""The error of each call; None: it succeeds."""


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
    """Reads memory that nobody wrote."""
    seen = bench.observe(fresh, device=index(bench), size=FRESH)
    for turn, found in enumerate(seen):
        if found.count(0) > len(found) // 2:
            raise Failure(
                "fresh memory filled with a pattern",
                f"{found.count(0)} of {len(found)} bytes are zero (allocation {turn})",
            )
    return Observation(note=f"filled with {seen[0][:4].hex()}")


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
    data = content((bench.target.seed, "late"), BULK)
    seen = bench.observe(late, device=index(bench), data=data)
    if seen[-1] != data[-64:]:
        return Observation(note=f"seen at try {len(seen)}")
    raise Failure("old bytes for who does not wait", f"the new ones, in each of {TRIES} tries")


def _faults(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name in FAULTS:
        if target.emulated:
            yield Case(name)
        else:
            yield NotDeclaredCase(name, "/emulated", "nobody can break a real device on request")


@rule(
    "L1.emulated.failure",
    summary="work that fails is told by the next wait for its stream, and a lost device by every "
    "call from then on",
    why="A kernel fails long after it was queued. Where nobody is told, the tokens after it are "
    "made of what was there before; where a lost device seems to come back, a server goes on with "
    "half of its memory gone. An emulated device lets both happen: SIM_FAULT=corrupt@1+ "
    "spoils every transfer, lost@1 loses the device at its first work, oom@1 refuses the first "
    "allocation; see the README of vllm-adapter-sim.",
    cases=_faults,
    needs=("L1.stream.wait",),
    seconds=150.0,
)
def check_failure(bench: Bench, case: Case) -> Observation:
    """Lets the fault strike in a process of its own, and asks again and again."""
    seen = bench.observe(with_fault, device=index(bench), fault=FAULTS[case.id])
    if "died" in seen:
        raise Failure("the faults to end in typed errors", f"the process to end: {seen['died']}")
    for step, wanted in WANTED[case.id].items():
        if seen[step] != wanted:
            raise Failure(
                f"{step} to answer {wanted or 'OK'} with SIM_FAULT={FAULTS[case.id]}",
                f"{seen[step] or 'OK'}",
            )
    return Observation(note=", ".join(f"{step}: {kind}" for step, kind in seen.items() if kind))
