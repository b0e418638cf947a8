"""One draw on the bench: its calls, in the order that its history asks for.

A kernel may be right at first and wrong after: it keeps what it was given by shape or address, it
takes scratch memory to be as it left it, or gives a result that its next call overwrites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.ops import runs
from vllm_adapter_conformance.ops.cases import Facts
from vllm_adapter_conformance.ops.draw import CONTENTS
from vllm_adapter_conformance.ops.runs import CallOutcome, DeviceCall
from vllm_adapter_conformance.ops.trials import TRIALS


class History:
    """The calls of one draw. `worst` is their largest share of the budget."""

    def __init__(
        self,
        bench: Bench,
        op: str,
        facts: Facts,
        choice: Mapping[str, Any],
        seed: str,
        between: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`between`: facts and choices of the calls that come between two equal ones."""
        self.bench, self.op, self.facts = bench, op, facts
        self.choice, self.seed, self.between = choice, seed, between
        self.binding = runs.bind_declared(bench, op, facts)
        self.worst = 0.0

    def run(self) -> float:
        """Makes the calls and judges each; gives the largest share.

        Raises:
            Failure: as `runs.judge`, with the history in its sentence.
        """
        first = self._call(self.choice, self.seed)
        held = self._judged(first, "", ready=True)
        how = self.choice["history"]
        if how == "again":
            like = self._call(self.choice, f"{self.seed}/again")
            self._judged(like, "after a like call", ready=True)
            self._kept(first, held)
            self._equal(first, held, self._judged(first, "when repeated"))
        elif how == "in place":
            for contents in range(1, len(CONTENTS)):
                other = TRIALS[self.op].draw(self.facts, self.choice, self.seed, contents)
                runs.write(self.bench, first, other)
                runs.make_ready(self.bench, self.binding, first)
                self._judged(first, "with other contents at the same addresses", ready=True)
        elif self.between:
            when = "after a call of another shape" if how == "in turn" else "after other facts"
            for point in self.between:
                # The same lengths, as far as it can be: a kernel might keep something by them.
                facts, choice = point["facts"], point["choice"]
                turn = History(self.bench, self.op, facts, choice, self.seed)
                turn._judged(turn._call(choice, self.seed, contents=1), when, ready=True)
                self.worst = max(self.worst, turn.worst)
            self._kept(first, held)
            self._equal(first, held, self._judged(first, when))
        return self.worst

    def _call(self, choice: Mapping[str, Any], seed: str, contents: int = 0) -> DeviceCall:
        sample = TRIALS[self.op].draw(self.facts, choice, seed, contents)
        return runs.bound_call(self.bench, self.binding, self.op, sample)

    def _judged(self, call: DeviceCall, when: str, *, ready: bool = False) -> CallOutcome:
        """What a call gave, judged."""
        if not ready:
            runs.make_ready(self.bench, self.binding, call)
        try:
            outcome = runs.run(self.bench, call, self.binding, self.facts)
            share = runs.judge_outcome(self.bench, call, outcome, self.facts)
        except Failure as failure:
            if not when:
                raise
            raise Failure(
                f"{failure.expected}, {when}",
                failure.seen,
                share=failure.share,
                detail=failure.detail,
                cause=failure.cause,
            ) from failure
        self.worst = max(self.worst, share)
        return outcome

    def _kept(self, call: DeviceCall, held: CallOutcome) -> None:
        """Results are still what they were when they were read."""
        now = self.bench.ask("read", results=held.kept.number)
        if not runs.same_results(held.results, now):
            raise Failure(
                f"{self.op}: a result that stays as it is while other calls run",
                "a later call changed it",
                detail=self._where(call),
            )

    def _equal(self, call: DeviceCall, before: CallOutcome, after: CallOutcome) -> None:
        """An equal call gives equal bits, unless the descriptor says otherwise."""
        capability = self.bench.target.capability
        if capability is not None and capability.numerics.deterministic is False:
            return
        if not runs.same_results(before.results, after.results):
            raise Failure(
                f"{self.op}: equal bits from an equal call",
                "a repeated call gives others",
                detail=self._where(call),
            )

    def _where(self, call: DeviceCall) -> str:
        return f"sample {call.sample.name!r}; {self.facts}; seed {self.bench.target.seed}"
