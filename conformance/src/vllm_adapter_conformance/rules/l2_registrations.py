"""L2: with the adapter loaded, core alone has registered kernels for its operators."""

from __future__ import annotations

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, Observation, once, rule
from vllm_adapter_conformance.ops.cases import base_cases, declared


@rule(
    "L2.registrations",
    summary="nobody but core has registered anything in torch's namespace vllm_adapter",
    why="Each operator, adapter and dispatch key has one kernel, which core registers from the "
    "descriptor. A second registration (torch.library, or TORCH_LIBRARY_IMPL in C++) runs in the "
    "place of an adapter's or of core's kernel, for every model of the process, and no answer "
    "says so. The message names what was registered, and who did it. Name the kernel in the "
    "descriptor as `run`, and keep operators of your own in a namespace of your own.",
    cases=once,
    seconds=120.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """Opens the device, binds a case of each operator, and asks torch what it has."""
    from vllm_adapter_conformance.device_side.library import foreign

    capability = declared(bench.target)
    first = [(op, base.facts) for op in OPERATORS for base in base_cases(capability, op)[:1]]
    found = bench.observe(foreign, cases=first)
    if found:
        raise Failure("no registration but core's own", found[0], detail="\n".join(found))
    return Observation(note="core's alone")
