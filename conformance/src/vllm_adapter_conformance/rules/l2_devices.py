"""L2: an operator that serves two devices keeps them apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import base_cases, declared
from vllm_adapter_conformance.rules import l2_repeat

IN_TURN: Final = 40
AT_ONCE: Final = 40
"""Calls of each of the two devices."""


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op)[:1]:
            other = _other(target)
            if other is None:
                yield NotDeclaredCase(op, "/identity/arch", "there is one device of it only")
            else:
                yield Case(op, {"op": op, "facts": base.facts, "other": other}, base.pointer)


def _other(target: Target) -> int | None:
    """The index of another device of the same descriptor."""
    mine = target.device
    if mine is None:
        return None
    alike = (d.index for d in target.record.devices if d.arch == mine.arch)
    return next((index for index in alike if index != mine.index), None)


@rule(
    "L2.devices",
    summary="calls on two devices, in turn and at once, give what each gives alone",
    why="A server with several devices drives all of them from one process, or loads on one while "
    "it answers on another. Scratch, tables and handles that are kept by shape alone belong to "
    "the device that came first, and a kernel that is launched on the current device, or on "
    "device 0, reads memory that is not there: the second device's results are noise, or the "
    "first one's. Take the device from the arguments at each call, and keep what is kept by "
    "device as well.",
    cases=_cases,
    needs=("L1.copy.round_trip", "L1.device.named"),
    seconds=120.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """Equal shapes and other contents on each, from one thread and then from two."""
    from vllm_adapter_conformance.device_side.repeat import call_at_once, call_in_turn
    from vllm_adapter_conformance.ops.calls import plain_call

    op, facts = case.params["op"], dict(case.params["facts"])
    assert bench.target.device is not None
    devices = [bench.target.device.index, case.params["other"]]
    samples = l2_repeat.inputs(bench, op, facts, l2_repeat.SMALL)
    given = [plain_call(op, facts, sample) for sample in samples]
    worst = 0.0
    for look, calls, where in (
        (call_in_turn, 2 * IN_TURN, "call {} of two devices in turn"),
        (call_at_once, AT_ONCE, "call {} of one of two devices at once"),
    ):
        seen = bench.observe(look, inputs=given, calls=calls, devices=devices)
        worst = max(worst, l2_repeat.judge(bench, op, facts, samples, seen, where))
    return Observation(worst, f"devices {devices[0]} and {devices[1]}")
