"""L2: the same input gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import base_cases, declared

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.bench import BoundOperator
    from vllm_adapter_conformance.ops.trial import Sample

RUNS: Final = 3
MANY: Final = 200
"""Runs of the first sample: what happens once in a hundred calls is no rounding."""


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op):
            id = f"{op}-{base.id}"
            if declared(target).numerics.deterministic is False:
                pointer = "/numerics/deterministic"
                yield NotDeclaredCase(id, pointer, "the descriptor says: not deterministic")
            else:
                yield Case(id, {"op": op, "facts": base.facts}, base.pointer)


@rule(
    "L2.determinism",
    summary="the same input gives the same bits, unless the descriptor says otherwise",
    why="Users compare runs to find a fault, and tests compare tokens: where results differ from "
    "run to run, both become guesswork, and cached prefixes give other tokens than fresh ones. "
    "Usual causes are atomic additions in any order, uninitialised memory that is read, and a "
    "choice of algorithm by timing. A kernel that gives one buffer to every caller is found here "
    "too: its next call overwrites what is still in use. Fix the order of reduction, or say "
    '`"numerics": {"deterministic": false}`, which the certificate then shows.',
    cases=_cases,
    needs=("L1.copy.round_trip",),
)
def check(bench: Bench, case: Case) -> Observation:
    """Runs every sample several times from equal fresh arguments."""
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops import runs

    op, facts = case.params["op"], dict(case.params["facts"])
    binding = runs.bind_declared(bench, op, facts)
    samples = runs.samples(SPECS[op], facts, bench)
    _repeat(bench, binding, samples[0], case)
    for sample in samples:
        calls = [runs.bound_call(bench, binding, op, sample)]
        first = runs.run(bench, calls[0], binding, facts)
        where = f"sample {sample.name!r}; {case.id}; seed {bench.target.seed}"
        for number in range(1, RUNS):
            # The first call and its results stay where they are: memory is not given twice.
            calls.append(runs.bound_call(bench, binding, op, sample))
            outcome = runs.run(bench, calls[-1], binding, facts)
            if any(
                one and one == other
                for one, other in zip(first.addresses, outcome.addresses, strict=False)
            ):
                raise Failure(
                    f"{op}: each call's result in memory of its own",
                    f"run {number} gives the memory that run 0 gave, which is still in use",
                    detail=where,
                )
            if not runs.same_outcome(first, outcome):
                raise Failure(
                    f"{op}: equal bits from equal input",
                    f"run {number} differs from run 0",
                    detail=where,
                )
    return Observation(note=f"{RUNS} runs of each sample, {MANY} of the first")


def _repeat(bench: Bench, binding: BoundOperator, sample: Sample, case: Case) -> None:
    """Runs one sample many times on the same arguments."""
    from vllm_adapter_conformance.ops import runs

    op = case.params["op"]
    call = runs.bound_call(bench, binding, op, sample)
    first = None
    for number, outcome in enumerate(runs.repeated(bench, call, binding, MANY)):
        first = first or outcome
        if not runs.same_outcome(first, outcome):
            raise Failure(
                f"{op}: equal bits from equal input",
                f"run {number} of {MANY} differs from run 0",
                detail=f"sample {sample.name!r}; {case.id}; seed {bench.target.seed}",
            )
