"""L2: a C library's operators: what it offers is what the descriptor declares, and is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter.errors import VllmAdapterError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import OpFacts, base_cases, declared

if TYPE_CHECKING:
    from vllm_adapter_conformance.ops.trial import Sample

NO_ENTRY = "no entry names a function of a C library"


def _operators(target: Target) -> Iterator[Case | NotDeclaredCase]:
    operators = target.capability.operators if target.capability else {}
    for op in OPERATORS:
        entries = [e for e in operators.get(op, ()) if e.library_function is not None]
        if entries:
            yield Case(op, {"op": op}, entries[0].pointer)
        else:
            yield NotDeclaredCase(op, f"/operators/{op}", NO_ENTRY)


@rule(
    "L2.library.offers",
    summary="the library has each function that the descriptor names, in each dtype it declares",
    why="Coverage is declared once, in the descriptor, and plans are made from it without the "
    "chip. A function that is NULL, or a dtype that operator_dtypes does not know, is seen only "
    "when the model is loaded. Declare less, or build the library with more.",
    cases=_operators,
)
def check_offers(bench: Bench, case: Case) -> Observation:
    """Asks the function table and operator_dtypes."""
    op = case.params["op"]
    seen = _offers(bench, op)
    name, offered = seen["name"], seen["dtypes"]
    if not seen["has"]:
        raise Failure(f"a function {op}, which {case.pointer} names", f"NULL in {name}")
    for entry in declared(bench.target).operators[op]:
        missing = [d for d in entry.dtypes if entry.library_function and d not in offered]
        if missing:
            raise Failure(
                f"{entry.pointer}/dtypes within what {name} says of {op}: {', '.join(offered)}",
                f"{', '.join(missing)} beyond it",
            )
    return Observation(note=f"{name}: {', '.join(offered)}")


@rule(
    "L2.library.dtypes",
    summary="what operator_dtypes says is true: right in these dtypes, and refused in others",
    why="Whether a layer can be bound is decided by that answer, before any kernel runs. A dtype "
    "too many is a layer that fails, or is wrong, at its first step; one that is not named and "
    "answered with a number is a wrong number that nobody tests.",
    cases=_operators,
    needs=("L2.library.offers", "L2.refusal.direct"),
)
def check_dtypes(bench: Bench, case: Case) -> Observation:
    """Calls the function in every dtype: with a sample that the descriptor's first entry takes."""
    op = case.params["op"]
    base = next(iter(base_cases(declared(bench.target), op)), None)
    if base is None:
        raise Failure(f"a case of {op} that the descriptor accepts", "none")
    offered = _offers(bench, op)["dtypes"]
    for dtype in DTYPES:
        refused = _refusal(bench, base, dtype)
        if dtype in offered and refused is not None:
            raise Failure(f"{op} in {dtype}, which operator_dtypes names", f"refused: {refused}")
    return Observation(note=f"offered: {', '.join(offered)}")


def _refusal(bench: Bench, base: OpFacts, dtype: str) -> str | None:
    """How the library refuses a dtype; None where it runs, and is right."""
    from vllm_adapter.engine.device_process.errors import RemoteError
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.device_side.library import kernel
    from vllm_adapter_conformance.ops import runs

    facts = {**base.facts, "dtype": dtype}
    sample: Sample = runs.samples(SPECS[base.op], facts, bench)[0]
    try:
        call = runs.make_call(bench, SPECS[base.op], sample)
    except RemoteError as error:
        return f"the device cannot hold it: {error}"
    function = bench.kept(bench.observe(kernel, op=base.op))
    try:
        if OPERATORS[base.op].planned:
            bench.ask("ready", call=call.placed.number, step=runs.step_of(sample))
        outcome = runs.run_raw(bench, call, function)
    except VllmAdapterError as error:
        return error.message
    runs.judge_results(bench, call, outcome, facts)
    return None


def _offers(bench: Bench, op: str) -> dict[str, Any]:
    from vllm_adapter_conformance.device_side.library import offers

    return bench.observe(offers, op=op)
