"""L2: what is not declared is refused, and never answered with a wrong number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.decision import Reject, decide, holds
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.errors import UnsupportedCase, VllmAdapterError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import OpFacts, declared, undeclared

if TYPE_CHECKING:
    from vllm_adapter.contract.decision import OperatorEntry
    from vllm_adapter_conformance.ops.trial import Sample

SAMPLES: Final = 2
"""Samples for one undeclared case of one kernel: the suite tries many cases, not many shapes."""


def _operators(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        yield Case(op, {"op": op})


@rule(
    "L2.refusal.bind",
    summary="binding a case that is not declared raises UnsupportedCase with its pointer",
    why="Under VA_FALLBACK=error an operator asks for a refusal where the device has no "
    "implementation. A case that binds all the same runs on code that nobody tested there. The "
    "message must hold the JSON pointer of the declaration that refused, so that the reader knows "
    "which line of the descriptor to look at. Usual cause: a descriptor loaded from another file "
    "than the one that is certified, or `implementations()` that accept more than it declares.",
    cases=_operators,
)
def check_bind(bench: Bench, case: Case) -> Observation:
    """Binds every undeclared case of one operator under policy `error`."""
    cases = undeclared(declared(bench.target), case.params["op"])
    for refused in cases:
        assert refused.refusal is not None
        try:
            binding = bench.bind(refused.op, refused.facts)
        except UnsupportedCase as error:
            if refused.refusal.pointer not in str(error):
                raise Failure(
                    f"the refusal of {refused.op} {refused.id} to name {refused.refusal.pointer}",
                    str(error),
                ) from error
        else:
            raise Failure(
                f"UnsupportedCase ({refused.refusal.pointer}) for {refused.op} {refused.id}",
                f"it is bound to {', '.join(binding.providers)}",
            )
    return Observation(note=f"{len(cases)} undeclared cases refused")


def _kernels(target: Target) -> Iterator[Case | NotDeclaredCase]:
    """One case for each function that an entry names; it may stand in several entries."""
    seen: set[tuple[str, str | None, str | None]] = set()
    for op, entries in (target.capability.operators if target.capability else {}).items():
        for number, entry in enumerate(entries):
            key = (op, entry.run, entry.plan)
            if not entry.declares:
                yield NotDeclaredCase(f"{op}-{number}", entry.pointer, f"declared {entry.support}")
            elif key not in seen:
                seen.add(key)
                yield Case(f"{op}-{number}", {"op": op, "entry": number}, entry.pointer)


@rule(
    "L2.refusal.direct",
    summary="a kernel called directly with an undeclared case raises, or is right",
    why="Kernels are also called past the descriptor: by hand, by another framework, after a "
    "change of limits. A kernel that takes a dtype, a head size, a window or a soft cap that it "
    "does not serve, and answers with a plausible number, is the fault that costs weeks. Raise "
    "for what the kernel cannot do (one comparison on the host), or do it right. A crash or a "
    "result on another device fails too.",
    cases=_kernels,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check_direct(bench: Bench, case: Case) -> Observation:
    """Calls one kernel with every case that the adapter does not declare."""
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops import runs

    capability = declared(bench.target)
    op = case.params["op"]
    entry = capability.operators[op][case.params["entry"]]
    raised = right = 0
    for refused in undeclared(capability, op):
        if isinstance(decide(OPERATORS[op], entry, refused.facts), Reject):
            for sample in _suitable(runs.samples(SPECS[op], refused.facts, bench), entry):
                if _refuses(bench, entry, refused, sample):
                    raised += 1
                else:
                    right += 1
    return Observation(note=f"{raised} calls raised, {right} were right")


def _suitable(samples: Any, entry: OperatorEntry) -> list[Sample]:
    """A few samples whose phase the entry serves, among them the last: views."""
    rule = entry.limits.get("phase", {})
    able = [s for s in samples if s.step is None or holds(rule, s.step("cpu").phase)]
    return [*able[: SAMPLES - 1], *able[-1:]] if len(able) > SAMPLES else able


def _refuses(bench: Bench, entry: OperatorEntry, refused: OpFacts, sample: Sample) -> bool:
    """True where the kernel raises, False where it is right; a Failure otherwise."""
    from vllm_adapter.engine.device_process.errors import RemoteError
    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.device_side.calls import WEIGHTS
    from vllm_adapter_conformance.ops import runs

    assert entry.run is not None
    call = runs.make_call(bench, SPECS[refused.op], sample)
    kernel = bench.function("kernel", entry.run)
    moments: dict[str, Any] = {}
    if entry.prepare_weights:
        prepare = bench.function("kernel", entry.prepare_weights)
        moments |= {"prepare": prepare.number, "weight": WEIGHTS[refused.op]}
    if OPERATORS[refused.op].planned:
        plan = bench.function("kernel", entry.plan) if entry.plan else None
        moments |= {"plan": plan and plan.number, "step": runs.step_of(sample)}
    try:
        if moments:
            bench.ask("ready", call=call.placed.number, **moments)
        outcome = runs.run_raw(bench, call, kernel)
    except (VllmAdapterError, RemoteError) as error:
        _check_alive(bench, f"{entry.run} refused {refused.op} {refused.id}", error)
        return True
    try:
        runs.judge_results(bench, call, outcome, refused.facts)
    except Failure as failure:
        raise Failure(
            f"{entry.run} to raise for {refused.op} {refused.id}, or to be right",
            failure.seen,
            share=failure.share,
            detail=failure.detail,
            cause=failure.cause,
        ) from failure
    return False


def _check_alive(bench: Bench, when: str, error: Exception) -> None:
    """A fault that an asynchronous device reports late leaves it dead: that is no refusal."""
    if not bench.is_sound():
        from vllm_adapter_conformance.ops.runs import error_text

        raise Failure(f"the device to work after {when}", f"it does not: {error_text(error)}")
