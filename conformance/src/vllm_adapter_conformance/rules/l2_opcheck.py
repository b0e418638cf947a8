"""L2: what torch itself checks of an operator: schema, fake, functionalisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Accept
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import (
    OpFacts,
    base_cases,
    decisions,
    declared,
    direct_case,
)

EAGER: Final = ("test_schema", "test_faketensor")
TRACED: Final = ("test_autograd_registration", "test_aot_dispatch_dynamic")


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        direct = direct_case(declared(target), op)
        id = f"{op}-default"
        if direct:
            yield Case(id, {"op": op, "facts": direct.facts, "default": True}, direct.pointer)
        else:
            yield NotDeclaredCase(id, f"/operators/{op}", "every kernel needs bind()")
        yield from _bound(declared(target), op)


def _bound(capability: Capability, op: str) -> Iterator[Case | NotDeclaredCase]:
    """One case for each overload that the adapter's entries are bound to."""
    seen: set[tuple[str, ...]] = set()
    for base in base_cases(capability, op):
        found = decisions(capability, op, base.facts)
        winners = [entry for entry, decision in found if isinstance(decision, Accept)]
        pointers = tuple(entry.pointer for entry in winners)
        if pointers not in seen:
            seen.add(pointers)
            yield _one(base, winners[0].pointer, winners[0].form)


def _one(base: OpFacts, pointer: str, form: str) -> Case | NotDeclaredCase:
    id = f"{base.op}-{base.id}"
    operator = OPERATORS[base.op]
    if pointer.split("/")[2] != base.op:
        return NotDeclaredCase(
            id, pointer, f"composed of {operator.composed_of}, which is checked"
        )
    if form == "torch" and not operator.opaque:
        return NotDeclaredCase(id, f"{pointer}/form", "plain torch has no overload of its own")
    return Case(id, {"op": base.op, "facts": base.facts, "default": False}, pointer)


@rule(
    "L2.opcheck",
    summary="torch.library.opcheck passes for each overload",
    why="torch.compile trusts an operator's schema and fake without looking: an argument that is "
    "written and not marked, a result that aliases an argument, or another shape than the fake "
    "gives ends as wrong numbers or a crash in compiled models only. The message names the "
    "utility that failed. The schema and the fake are core's; so it is the kernel's result "
    "(shape, dtype, strides, aliasing) or its writes that have to change.",
    cases=_cases,
    needs=("L1.copy.round_trip", "L2.library.work"),
    seconds=120.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """Checks one overload with the first sample of its case and with the one of views."""
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.device_side.tracing import opcheck
    from vllm_adapter_conformance.ops import runs

    op, facts = case.params["op"], dict(case.params["facts"])
    binding = runs.bind_declared(bench, op, facts)
    default, overload = case.params["default"], ""
    samples = runs.samples(SPECS[op], facts, bench)
    views = [s for s in samples[1:] if "views" in s.name or "strided" in s.name]
    for sample in [samples[0], *views]:
        # Tracing is the long part: once is enough, with views where there are some.
        traced = sample is (views or samples)[0]
        call = runs.make_call(bench, SPECS[op], sample)
        if not default:
            runs.make_ready(bench, binding, call)
        seen = bench.observe(
            opcheck,
            call=call.placed.number,
            packet=op if default else None,
            binding=binding.number,
            utilities=EAGER + TRACED * traced,
        )
        overload = seen["overload"]
        if "error" in seen:
            first = (seen["error"].strip().splitlines() or ["no text"])[0][:300]
            raise Failure(
                f"opcheck of {overload} to pass",
                f"{seen['kind']}: {first}",
                detail=f"sample {sample.name!r}; {case.id}\n{seen['error']}",
            )
    return Observation(note=overload)
