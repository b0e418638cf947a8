"""L5: how much of the device each operator reaches; one rule an operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import base_cases, declared
from vllm_adapter_conformance.performance.baseline import (
    FELL,
    Baseline,
    Comparison,
    conditions,
    read_baseline,
)
from vllm_adapter_conformance.performance.figures import Figure, figure
from vllm_adapter_conformance.performance.roofline import (
    Roofline,
    insane,
    shares,
    spell_seconds,
)
from vllm_adapter_conformance.performance.shapes import Shape, ladder, timed_shapes
from vllm_adapter_conformance.rules._roofline import amount, beside, roofline_of
from vllm_adapter_conformance.rules.l5_roofline import ROOFLINE

LONGEST_S: Final = 0.05
"""A call that takes longer at the roofline's rate has its tokens halved, then its widths."""
SPENT_S: Final = 0.4
TRIES: Final = 3
"""A fall is measured so often before it counts: of two hundred intervals of 95 %, some are apart
by chance, and a machine is busy for a while."""
MEMORY_PART: Final = 4
"""A shape whose arguments take more than one part in so many of the device is not run."""


class ShareFell(Failure):
    """A share that is more than 10 % below the baseline's, as far as one measurement tells."""


def _register(op: str) -> None:
    def cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
        if target.capability is None:
            return
        capability = declared(target)
        spanned = {str(base.facts["dtype"]): base for base in base_cases(capability, op)}
        room = capability.memory.capacity_bytes
        for dtype in DTYPES:
            if dtype not in spanned:
                yield NotDeclaredCase(dtype, f"/operators/{op}", f"{op} has no {dtype}")
                continue
            found = list(timed_shapes(capability, op, dtype))
            for phase, size, shape in found:
                id = f"{dtype}-{phase}-{size}"
                if isinstance(shape, Reject):
                    yield NotDeclaredCase(id, shape.pointer, str(shape))
                elif room is not None and shape.work.bytes > room // MEMORY_PART:
                    reason = f"it moves {shape.work.bytes} bytes, and the device has {room}"
                    yield NotDeclaredCase(id, "/memory/capacity_bytes", reason)
                else:
                    smaller = [s for p, _, s in found if p == phase and isinstance(s, Shape)]
                    tried = smaller[smaller.index(shape) :: -1]
                    sizes = [{"facts": dict(s.facts), "dims": dict(s.dims)} for s in tried]
                    given = {"op": op, "phase": phase, "size": size, "shapes": sizes}
                    yield Case(id, given, spanned[dtype].pointer)

    @rule(
        f"L5.{op}.share",
        summary=f"{op} takes a time that its work can take on this device",
        why="Bytes and operations of each call are counted by arithmetic, its time is measured "
        "in turn with what bounds it (a copy, a read or a product of matrices on the same "
        "device), and the share of the roofline is what the certificate has: the median and its "
        "interval, per phase, dtype and size. No speed is asked for. What is 1.1 times as fast "
        "as the device's fastest sample has not done all its work, or its end is not waited for; "
        "a thousand times the roofline's time and 300 launches more are no slow kernel but a "
        "sleep, or data that goes over the host. Against "
        "a baseline (`--baseline`, or the certificate that is replaced) a fall of more than 10 % "
        "fails where the intervals of three measurements in a row show it, on an equal device, "
        "torch and driver.",
        cases=cases,
        needs=(ROOFLINE, f"L2.{op}.correct"),
        seconds=120.0,
    )
    def check(bench: Bench, case: Case) -> Observation:
        return check_share(bench, case)


def check_share(bench: Bench, case: Case) -> Observation:
    """Times one shape beside what bounds it."""
    from vllm_adapter_conformance.performance.measuring import measure_call

    params = case.params
    shapes = [
        Shape(params["op"], params["phase"], params["size"], raw["facts"], raw["dims"])
        for raw in params["shapes"]
    ]
    dtype = str(shapes[0].facts["dtype"])
    roof = roofline_of(bench, dtype)
    shape = fitted(shapes, roof)
    against = beside(bench, dtype, roof.bound(shape.work))

    def measured() -> Observation:
        seen = measure_call(
            bench,
            op=shape.op,
            facts=dict(shape.facts),
            dims=dict(shape.dims),
            beside=against,
            seconds=SPENT_S,
        )
        return judge(bench, shape, roof, against, seen)

    for _ in range(TRIES - 1):
        with suppress(ShareFell):
            return measured()
    return measured()


def fitted(shapes: Sequence[Shape], roof: Roofline) -> Shape:
    """The first that the device could do in `LONGEST_S`; if there is none, the least of all."""
    shape = shapes[0]
    for shape in ladder(shapes):
        if roof.seconds(shape.work) <= LONGEST_S:
            break
    return shape


def judge(
    bench: Bench, shape: Shape, roof: Roofline, against: dict[str, Any], seen: dict[str, Any]
) -> Observation:
    """The figures of one shape, or the failure that they show."""
    taken = figure(seen["taken"], "s")
    rates = [amount(against) / seconds for seconds in seen["beside"]]
    share = shares(roof, shape.work, seen["taken"], rates)
    best = "best_memory" if roof.bound(shape.work) == "memory" else "best_compute"
    roof = replace(roof, **{best: max(getattr(roof, best), *rates)})
    row: dict[str, Any] = {
        "operator": shape.op,
        "dtype": shape.facts["dtype"],
        "phase": shape.phase,
        "size": shape.size,
        "sizes": dict(shape.dims),
        "bytes": shape.work.bytes,
        "flops": shape.work.flops,
        "bound": roof.bound(shape.work),
        "seconds": taken.to_json(),
        "share": share.to_json(),
        "turns": seen["turns"],
        "beyond_caches": seen["beyond"],
    }
    compared = _compared(bench, row, seen)
    row["baseline"] = None if compared is None else compared.to_json()
    figures = {"shares": [row], "threads": seen["threads"], "torch": seen["torch"]}
    problem = insane(roof, shape.work, taken, share)
    if problem is not None:
        raise Failure(
            f"{shape.op} to take a time that the device can have taken", problem, figures=figures
        )
    if compared is not None and compared.verdict == FELL:
        assert compared.then is not None
        raise ShareFell(
            f"{shape.op} not more than 10 % below its share of the roofline in the baseline, "
            f"{_spelt(compared.then)}",
            _spelt(share),
            figures=figures,
        )
    verdict = f"; baseline: {compared.verdict}" if compared else ""
    if compared and compared.reason:
        verdict += f" ({compared.reason})"
    note = f"{spell_seconds(taken.median)}, {_spelt(share)} of the {row['bound']} roofline"
    return Observation(note=note + verdict, figures=figures)


def _compared(bench: Bench, row: dict[str, Any], seen: dict[str, Any]) -> Comparison | None:
    path = bench.target.baseline
    if path is None:
        return None
    now = conditions(bench.target, seen["torch"], seen["threads"])
    old: Baseline = read_baseline(path, bench.target.record.name)
    return old.judge(row, now)


def _spelt(share: Figure) -> str:
    return f"{share.median:.3g} ({share.low:.3g} to {share.high:.3g})"


for _op in OPERATORS:
    _register(_op)
