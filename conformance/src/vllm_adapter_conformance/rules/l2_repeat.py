"""L2: what holds once holds each time: thousands of calls, and calls from two threads at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import Facts, base_cases, declared, large_facts

if TYPE_CHECKING:
    import torch

    from vllm_adapter.engine.ops.bind import Binding
    from vllm_adapter_conformance.ops.trial import Sample

CALLS: Final = 2000
"""Calls of one operator in a row: what is wrong once in a thousand is met twice."""
CALLS_OF_A_THREAD: Final = 200
KEPT: Final = 8
"""Results of each input that are in use until the last call."""
SMALL: Final[Mapping[str, Any]] = {"rows": (2,), "tokens": 2, "queries": 3, "batch": 2}
WIDE: Final[Mapping[str, Any]] = {
    "rows": (65,),
    "tokens": 65,
    "queries": 33,
    "batch": 3,
    "context": "two blocks and one",
}
"""Work that takes long enough for another thread to come between."""

Given = Mapping[str, Any]
"""One call as plain data: its arguments, and the step of a planned operator."""
Seen = list[tuple[list["torch.Tensor"], list[int]]]
"""Unlike results of one input, each with the numbers of the calls that gave it.

A number below zero is of a result that was read once more after the last call: -1 is call 0's.
"""


def _many(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op)[:1]:
            yield Case(op, {"op": op, "facts": base.facts}, base.pointer)


def _threaded(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for op in OPERATORS if target.capability else ():
        for base in base_cases(declared(target), op)[:1]:
            facts = large_facts(declared(target), base)
            yield Case(op, {"op": op, "facts": facts}, base.pointer)


@rule(
    "L2.many_calls",
    summary=f"each of {CALLS} calls in a row is right",
    why="A server calls each operator millions of times. A result that is wrong once in a "
    "thousand calls is a wrong token in every answer, and no test of a few calls shows it. Two "
    "inputs take turns, and every result is held against the reference: a descriptor that says "
    "`not deterministic` is allowed rounding and nothing else. Usual causes are a race between "
    "launches, a counter or a ring of buffers that wraps around, and memory that is read before "
    "it is written.",
    cases=_many,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check_many(bench: Bench, case: Case) -> Observation:
    """Two inputs of a small case, in turn."""
    op, facts = case.params["op"], dict(case.params["facts"])
    samples = inputs(bench, op, facts, SMALL)
    given = [plain_data(op, sample) for sample in samples]
    seen = bench.observe(call_in_turn, op=op, facts=facts, inputs=given, calls=CALLS)
    share = judge(bench, op, facts, samples, seen, "call {} of " + str(CALLS))
    return Observation(share, f"{CALLS} calls")


@rule(
    "L2.threads",
    summary="calls from two threads at once give what each gives alone",
    why="A server loads, samples and answers on several threads, and torch lets go of Python's "
    "lock in every operator. Scratch memory that all threads share, or a global that holds what "
    "belongs to one call, mixes two requests: each gets a part of the other's numbers. Keep "
    "scratch in the call, or one of it for each thread or stream.",
    cases=_threaded,
    needs=("L1.copy.round_trip",),
    seconds=120.0,
)
def check_threads(bench: Bench, case: Case) -> Observation:
    """Two threads with an input each, of equal shapes."""
    op, facts = case.params["op"], dict(case.params["facts"])
    samples = inputs(bench, op, facts, WIDE)
    given = [plain_data(op, sample) for sample in samples]
    seen = bench.observe(call_at_once, op=op, facts=facts, inputs=given, calls=CALLS_OF_A_THREAD)
    share = judge(bench, op, facts, samples, seen, "call {} of one of two threads")
    return Observation(share, f"2 threads, {CALLS_OF_A_THREAD} calls each")


def inputs(bench: Bench, op: str, facts: Facts, shape: Mapping[str, Any]) -> list[Sample]:
    """Two samples of equal shapes, and other contents."""
    from vllm_adapter_conformance.ops.members import plain
    from vllm_adapter_conformance.ops.trials import TRIALS

    choice = {name: shape.get(name, usual) for name, usual in plain(op).items()}
    if "batch" in choice:
        # Steps of equal shapes for any kernel: that of decode does not take a prefill.
        choice |= {"phase": "mixed"} if "phase" in choice else {}
    seed = f"{bench.target.seed}/repeat"
    return [TRIALS[op].draw(facts, choice, seed, contents) for contents in (0, 1)]


def plain_data(op: str, sample: Sample) -> Given:
    """A sample as plain data, on the host."""
    import torch

    step = sample.step(torch.device("cpu")) if sample.step else None
    return {
        "args": list(sample.build(torch.Tensor.clone)),
        "step": step
        and {
            "query_lens": step.query_lens,
            "context_lens": step.context_lens,
            "block_table": step.block_table.tolist(),
            "block_size": step.block_size,
        },
    }


def judge(
    bench: Bench, op: str, facts: Facts, samples: list[Sample], seen: list[Seen], where: str
) -> float:
    """Holds every unlike result against the reference; the largest share of the budget."""
    import torch

    from vllm_adapter.engine.ops.catalog import SPECS
    from vllm_adapter_conformance.ops import runs

    capability, worst = declared(bench.target), 0.0
    for sample, results in zip(samples, seen, strict=True):
        args = list(sample.build(torch.Tensor.clone))
        for outputs, calls in results:
            when = _told(where, calls[0])
            written = len(SPECS[op].mutates)
            found = outputs[: len(outputs) - written]
            for at, mine in zip(SPECS[op].mutates, outputs[len(found) :], strict=True):
                args[at] = mine
            call = runs.DeviceCall(SPECS[op], sample, args, [])
            try:
                worst = max(worst, runs.judge_results(bench, call, found, facts))
            except Failure as failure:
                raise Failure(
                    f"{failure.expected}, in {when}",
                    failure.seen,
                    share=failure.share,
                    detail=failure.detail,
                ) from failure
        if len(results) > 1 and capability.numerics.deterministic is not False:
            raise Failure(
                f"{op}: equal bits from equal input",
                f"{_told(where, results[1][1][0])} differs from call 0",
                detail=f"sample {sample.name!r}; seed {bench.target.seed}",
            )
    return worst


def _told(where: str, number: int) -> str:
    text = where.format(number if number >= 0 else ~number)
    return text if number >= 0 else f"what {text} gave, read after the last call,"


def call_in_turn(
    bench: Bench, op: str, facts: Facts, inputs: list[Given], calls: int
) -> list[Seen]:
    """Calls an operator many times, with one or another input."""
    ready = [Ready(bench, op, facts, given) for given in inputs]
    for number in range(calls):
        # In no period: a ring of buffers of any length would give each input its own.
        ready[number.bit_count() % len(ready)].call(number)
    return [one.seen() for one in ready]


def call_at_once(
    bench: Bench, op: str, facts: Facts, inputs: list[Given], calls: int
) -> list[Seen]:
    """Calls an operator from one thread for each input."""
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    # A planned operator keeps its step behind the binding: each thread has one of its own.
    ready = [Ready(bench, op, facts, given, owner=_Owner()) for given in inputs]
    together = Barrier(len(ready))

    def run(one: Ready) -> None:
        together.wait(60)
        for number in range(calls):
            one.call(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(ready)) as pool:
            for done in [pool.submit(run, one) for one in ready]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    return [one.seen() for one in ready]


class _Owner:
    """Whose bindings are apart from all others."""


class Ready:
    """One input on the device, called again and again. Of equal results one is kept."""

    def __init__(
        self, bench: Bench, op: str, facts: Facts, given: Given, owner: object = None
    ) -> None:
        import torch

        from vllm_adapter.engine.ops.catalog import SPECS
        from vllm_adapter.engine.ops.step import make_step
        from vllm_adapter_conformance.ops.runs import WEIGHTS

        self.bench, self.owner = bench, owner
        self.binding: Binding = bench.bind(op, dict(facts), owner)
        self.args = [
            bench.to_device(arg) if isinstance(arg, torch.Tensor) else arg for arg in given["args"]
        ]
        self.mutated = [self.args[at] for at in SPECS[op].mutates]
        self.held = [argument.clone() for argument in self.mutated]
        if op in WEIGHTS:
            self.args[WEIGHTS[op]] = self.binding.prepare_weights(self.args[WEIGHTS[op]])
        self.step = given["step"] and make_step(**given["step"], device=bench.device)
        if self.step is not None:
            self.args[-1] = self.binding.handle
        self.found: dict[bytes, tuple[list[torch.Tensor], list[int]]] = {}
        self.first: list[tuple[int, Sequence[torch.Tensor], list[torch.Tensor]]] = []

    def call(self, number: int) -> None:
        """Calls once, and keeps what came back."""
        for argument, held in zip(self.mutated, self.held, strict=True):
            argument.copy_(held)
        if self.step is not None:
            self.binding.plan(self.step)
        result = self.binding.run(*self.args)
        results = () if result is None else result if isinstance(result, tuple) else (result,)
        if len(self.first) < KEPT:
            self.first.append((number, results, [written.clone() for written in self.mutated]))
        self._keep(number, (*results, *self.mutated))

    def _keep(self, number: int, found: Sequence[torch.Tensor]) -> None:
        import torch

        outputs = [output.detach().cpu() for output in found]
        raw = b"".join(o.contiguous().view(torch.uint8).numpy().tobytes() for o in outputs)
        if raw not in self.found:
            # The host may be the device: what is kept must not change with a later call.
            self.found[raw] = [output.clone() for output in outputs], []
        self.found[raw][1].append(number)

    def seen(self) -> Seen:
        """Unlike results, in the order in which they came; those of the first calls read again."""
        for number, results, written in self.first:
            # A ring of buffers gives its first result away again.
            self._keep(~number, (*results, *written))
        return list(self.found.values())
