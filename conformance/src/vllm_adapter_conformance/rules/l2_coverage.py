"""L2: the least coverage that can run a model."""

from __future__ import annotations

from vllm_adapter.contract.operators import CORE_OPERATORS, DTYPES
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, Observation, once, rule
from vllm_adapter_conformance.ops.cases import base_cases, declared


@rule(
    "L2.coverage.core",
    summary="linear, reshape_and_cache and paged_attention are `full` in a common dtype",
    why="An adapter that declares nothing has nothing that could fail. A model needs at least "
    "these three operators in one dtype; without them everything runs on core's portable code, "
    "and a certificate would promise a device that does not serve. Declare them as `full`, with a "
    "`run`, in one dtype; operators of core's own torch code may be named where the chip has "
    "nothing better.",
    cases=once,
)
def check(bench: Bench, case: Case) -> Observation:
    """Counts an entry only if a case of it can be bound for every phase."""
    capability = declared(bench.target)
    served = {}
    for op in CORE_OPERATORS:
        entries = [e for e in capability.operators.get(op, ()) if e.support == "full"]
        full = {dtype for entry in entries for dtype in entry.dtypes}
        served[op] = full & {str(base.facts["dtype"]) for base in base_cases(capability, op)}
    common = [d for d in DTYPES if all(d in dtypes for dtypes in served.values())]
    if not common:
        seen = "; ".join(f"{op}: {', '.join(sorted(d)) or 'none'}" for op, d in served.items())
        raise Failure(f"{', '.join(CORE_OPERATORS)} declared `full` in a common dtype", seen)
    return Observation(note=f"common dtypes: {', '.join(common)}")
