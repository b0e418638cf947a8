"""One draw on the bench: its calls, in the order that its history asks for.

A kernel may be right at first and wrong after: it keeps what it was given by shape or address, it
takes scratch memory to be as it left it, or gives a result that its next call overwrites.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.ops import runs
from vllm_adapter_conformance.ops.runs import DeviceCall
from vllm_adapter_conformance.ops.space import plain_choice
from vllm_adapter_conformance.ops.trials import TRIALS

if TYPE_CHECKING:
    from vllm_adapter.engine.ops.bind import Binding
    from vllm_adapter_conformance.ops.cases import Facts


class History:
    """The calls of one draw. `worst` is their largest share of the budget."""

    def __init__(
        self, bench: Bench, op: str, facts: Facts, choice: Mapping[str, Any], seed: str
    ) -> None:
        self.bench, self.op, self.facts = bench, op, facts
        self.choice, self.seed = choice, seed
        self.binding: Binding = runs.bind_declared(bench, op, facts)
        self.worst = 0.0

    def run(self) -> float:
        """Makes the calls and judges each; gives the largest share.

        Raises:
            Failure: as `runs.judge`, with the history in its sentence.
        """
        first = self._call(self.choice, self.seed)
        held = self._judged(first, "")
        how = self.choice["history"]
        if how == "again":
            self._judged(self._call(self.choice, f"{self.seed}/again"), "after a like call")
            self._kept(first, held)
            self._equal(first, held, self._judged(first, "when repeated"))
        elif how == "in place":
            other = self._call(self.choice, self.seed, contents=1)
            for mine, theirs in zip(first.bases, other.bases, strict=True):
                mine.copy_(theirs)
            # What was written in place belongs to the new contents.
            first.sample = other.sample
            runs.make_ready(self.bench, self.binding, first)
            self._judged(first, "with other contents at the same addresses", ready=True)
        elif how == "in turn":
            small = plain_choice(self.op, self.choice)
            self._judged(self._call(small, f"{self.seed}/turn"), "after a call of another shape")
            self._kept(first, held)
            self._equal(first, held, self._judged(first, "after a call of another shape"))
        return self.worst

    def _call(self, choice: Mapping[str, Any], seed: str, contents: int = 0) -> DeviceCall:
        sample = TRIALS[self.op].draw(self.facts, choice, seed, contents)
        return runs.bound_call(self.bench, self.binding, sample)

    def _judged(self, call: DeviceCall, when: str, *, ready: bool = False) -> list[torch.Tensor]:
        """The call's results, of which the suite keeps a copy, judged."""
        if not ready:
            runs.make_ready(self.bench, self.binding, call)
        results: list[torch.Tensor] = []

        def run(*args: Any) -> Any:
            found = self.binding.run(*args)
            results.extend(t for t in runs.as_tuple(found) if isinstance(t, torch.Tensor))
            return found

        try:
            self.worst = max(self.worst, runs.judge(self.bench, call, run, self.facts))
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
        return [*results, *(result.clone() for result in results)]

    def _kept(self, call: DeviceCall, held: list[torch.Tensor]) -> None:
        """Results are still what they were when the suite took its copy."""
        half = len(held) // 2
        for now, then in zip(held[:half], held[half:], strict=True):
            if not runs.same_bits(now, then):
                raise Failure(
                    f"{self.op}: a result that stays as it is while other calls run",
                    "a later call changed it",
                    detail=self._where(call),
                )

    def _equal(
        self, call: DeviceCall, before: list[torch.Tensor], after: list[torch.Tensor]
    ) -> None:
        """An equal call gives equal bits, unless the descriptor says otherwise."""
        capability = self.bench.target.capability
        if capability is not None and capability.numerics.deterministic is False:
            return
        half = len(before) // 2
        for one, other in zip(before[half:], after[half:], strict=True):
            if not runs.same_bits(one, other):
                raise Failure(
                    f"{self.op}: equal bits from an equal call",
                    "a repeated call gives others",
                    detail=self._where(call),
                )

    def _where(self, call: DeviceCall) -> str:
        return f"sample {call.sample.name!r}; {self.facts}; seed {self.bench.target.seed}"
