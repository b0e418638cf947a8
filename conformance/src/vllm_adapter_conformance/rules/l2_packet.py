"""L2: a call by the operator's bare name runs the default overload, and decides as bind does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.errors import UnsupportedCase
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
    from vllm_adapter_conformance.ops.runs import DeviceCall, Fn


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
    import torch

    from vllm_adapter_conformance.ops import runs

    op, facts = case.params["op"], case.params["facts"]
    capability = declared(bench.target)
    bench.opened  # noqa: B018 - puts the adapter in use, which the default asks
    packet = getattr(torch.ops.vllm_adapter, op)
    with runs.strict_policy():
        share = _served(bench, op, dict(facts), packet) if facts else None
        refused = undeclared(capability, op)[-1:] if facts else base_cases(capability, op)[:1]
        for one in refused or undeclared(capability, op)[-1:]:
            _refused(bench, one, packet)
    return Observation(share, "served" if facts else "refused: every kernel needs bind()")


def _served(bench: Bench, op: str, facts: dict[str, Any], packet: Fn) -> float:
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops import runs
    from vllm_adapter_conformance.ops.compiling import compiled, dispatched

    sample = runs.samples(SPECS[op], facts, bench)[0]
    call = runs.make_call(bench, SPECS[op], sample)
    with dispatched() as names:
        eager = runs.judge(bench, call, packet, facts)
    _only_default(op, names, "eager")
    again = runs.make_call(bench, SPECS[op], sample)
    run, graphs = compiled(packet)
    traced = runs.judge(bench, again, run, facts)
    _only_default(op, graphs.operators(), "compiled")
    return max(eager, traced)


def _only_default(op: str, names: list[str], how: str) -> None:
    ours = sorted({name for name in names if name.startswith(f"vllm_adapter.{op}.")})
    if ours != [f"vllm_adapter.{op}.default"]:
        raise Failure(f"vllm_adapter.{op}.default to run ({how})", ", ".join(ours) or "none")


def _refused(bench: Bench, refused: OpFacts, packet: Fn) -> None:
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops import runs
    from vllm_adapter_conformance.ops.compiling import compiled

    sample = runs.samples(SPECS[refused.op], refused.facts, bench)[0]
    call = runs.make_call(bench, SPECS[refused.op], sample)
    for how, run in (("eager", packet), ("compiled", compiled(packet)[0])):
        error = _error_of(run, call)
        # dynamo wraps what a fake raises, and keeps its name and text.
        right = isinstance(error, UnsupportedCase) or (
            how == "compiled" and UnsupportedCase.__name__ in str(error)
        )
        if not right:
            raise Failure(
                f"UnsupportedCase from a direct call of {refused.op} {refused.id} ({how})",
                "a result" if error is None else f"{type(error).__name__}: {error}",
            )


def _error_of(run: Fn, call: DeviceCall) -> Exception | None:
    try:
        run(*call.args)
    except Exception as error:
        return error
    return None
