"""L2: where bits may differ from call to call, each call is right all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import base_cases, declared

CALLS: Final = 200
"""As many as L2.determinism makes: what goes wrong once in a hundred calls is seen."""
_EQUAL: Final = "L2.determinism asks for equal bits, which is more"


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op):
            id = f"{op}-{base.id}"
            if declared(target).numerics.deterministic is False:
                yield Case(id, {"op": op, "facts": base.facts}, base.pointer)
            else:
                yield NotDeclaredCase(id, "/numerics/deterministic", _EQUAL)


@rule(
    "L2.repeat",
    summary="each of many equal calls is right where the descriptor says `deterministic: false`",
    why="That word allows another order of rounding, and no other result: sums that are added up "
    "in another order differ by the error budget at most. Every call is held against the float64 "
    "reference as if it were the only one. What is right at first and wrong later has a race: "
    "memory that is read before it is written, an atomic addition to what was not zeroed, a "
    "launch that is not waited for.",
    cases=_cases,
    needs=("L1.copy.round_trip",),
)
def check(bench: Bench, case: Case) -> Observation:
    """Calls with the first sample; each result of other bits than those before is judged."""
    from vllm_adapter_conformance.device_side.calls import repeated
    from vllm_adapter_conformance.ops.calls import expected, plain_call
    from vllm_adapter_conformance.ops.tolerance import compare
    from vllm_adapter_conformance.ops.trials import TRIALS

    op, facts = case.params["op"], dict(case.params["facts"])
    sample = TRIALS[op].samples(facts, bench.target.seed)[0]
    call = plain_call(op, facts, sample)
    unlike = bench.observe(repeated, call=call, calls=CALLS)
    wanted = expected(call)
    terms = sample.terms or TRIALS[op].terms(facts)
    worst = 0.0
    for number, outputs in unlike:
        for position, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
            share = compare(got, want, terms).share
            worst = max(worst, share)
            if share > 1:
                raise Failure(
                    f"{op}: every one of {CALLS} equal calls within its error budget",
                    f"call {number} has {share:.3g} of it (output {position})",
                    share=share,
                    detail=f"sample {sample.name!r}; {case.id}; seed {bench.target.seed}",
                )
    return Observation(worst, f"{CALLS} calls, {len(unlike)} unlike results")
