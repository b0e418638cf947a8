"""L2: a call by the operator's bare name runs the default overload, and decides as bind does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.errors import UnsupportedCase, VllmAdapterError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import (
    OpFacts,
    base_cases,
    declared,
    direct_case,
    undeclared,
)

if TYPE_CHECKING:
    from vllm_adapter_conformance.base.bench import Kept
    from vllm_adapter_conformance.ops.runs import DeviceCall


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        served = direct_case(declared(target), op)
        yield Case(op, {"op": op, "facts": served.facts if served else None})


@rule(
    "L2.packet.default",
    summary="torch.ops.vllm_adapter.<op>(...) runs the default overload, eager and compiled",
    why="torch resolves a call by bare name to the overload that was defined first. Where an "
    "adapter's own library defines one before core does, every other adapter's users run that "
    "kernel, in silence. The default must be right where the adapter declares the case, and raise "
    "UnsupportedCase where it does not, also while tracing. Import vllm_adapter.engine before "
    "registering anything, and never define overloads in the namespace vllm_adapter yourself.",
    cases=_cases,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """Calls the packet with a declared case, if any, and with one that is refused."""
    op, facts = case.params["op"], case.params["facts"]
    capability = declared(bench.target)
    packet = bench.function("packet", op)
    share = _served(bench, op, dict(facts), packet) if facts else None
    refused = undeclared(capability, op)[-1:] if facts else base_cases(capability, op)[:1]
    for one in refused or undeclared(capability, op)[-1:]:
        _refused(bench, one, packet)
    return Observation(share, "served" if facts else "refused: every kernel needs bind()")


def _served(bench: Bench, op: str, facts: dict[str, Any], packet: Kept) -> float:
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.device_side import tracing
    from vllm_adapter_conformance.ops import runs

    sample = runs.samples(SPECS[op], facts, bench)[0]
    call = runs.make_call(bench, SPECS[op], sample)
    with runs.errors_fail(bench, call, facts):
        seen = bench.observe(tracing.run_named, call=call.placed.number, function=packet.number)
    eager = runs.judge_outcome(bench, call, runs.outcome_of(bench, seen), facts)
    _only_default(op, seen["names"], "eager")
    again = runs.make_call(bench, SPECS[op], sample)
    traced = bench.observe(tracing.trace, function=packet.number)
    graphs = bench.kept(traced["graphs"])
    share = runs.judge(bench, again, bench.kept(traced["function"]), facts)
    _only_default(op, bench.observe(tracing.operators, graphs=graphs.number), "compiled")
    return max(eager, share)


def _only_default(op: str, names: list[str], how: str) -> None:
    ours = sorted({name for name in names if name.startswith(f"vllm_adapter.{op}.")})
    if ours != [f"vllm_adapter.{op}.default"]:
        raise Failure(f"vllm_adapter.{op}.default to run ({how})", ", ".join(ours) or "none")


def _refused(bench: Bench, refused: OpFacts, packet: Kept) -> None:
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.device_side import tracing
    from vllm_adapter_conformance.ops import runs

    sample = runs.samples(SPECS[refused.op], refused.facts, bench)[0]
    call = runs.make_call(bench, SPECS[refused.op], sample)
    traced = bench.observe(tracing.trace, function=packet.number)
    _, compiled = (bench.kept(traced[name]) for name in ("graphs", "function"))
    for how, function in (("eager", packet), ("compiled", compiled)):
        error = _error_of(bench, call, function)
        # dynamo wraps what a fake raises, and keeps its name and text.
        right = isinstance(error, UnsupportedCase) or (
            how == "compiled" and UnsupportedCase.__name__ in str(error)
        )
        if not right:
            raise Failure(
                f"UnsupportedCase from a direct call of {refused.op} {refused.id} ({how})",
                "a result" if error is None else runs.error_text(error),
            )


def _error_of(bench: Bench, call: DeviceCall, function: Kept) -> Exception | None:
    from vllm_adapter.engine.device_process.errors import RemoteError
    from vllm_adapter_conformance.ops import runs

    try:
        runs.run_raw(bench, call, function)
    except (VllmAdapterError, RemoteError) as error:
        return error
    return None
