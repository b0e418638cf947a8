"""One side of a search: an adapter's opened device, and the policy that its cases are bound under.

Adapter and judge share this process: a search is for whoever mends an adapter, and no proof.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

from vllm_adapter.engine.device import OpenDevice, open_record
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.errors import NoSuchDevice
from vllm_adapter.settings import AdapterFilter, Settings
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.bisecting.stored import StoredCall
from vllm_adapter_conformance.ops.pattern import AXES, describe
from vllm_adapter_conformance.ops.tolerance import budget_of, compare
from vllm_adapter_conformance.ops.trial import Expected
from vllm_adapter_conformance.ops.trials import TRIALS

WEIGHT: Final = {"linear": 1}
"""Which argument of an operator its winner may want prepared."""


@dataclass(frozen=True)
class Side:
    """An adapter alone: no other is asked, and core's code only where the policy lets it."""

    target: Target
    settings: Settings

    @classmethod
    def of(cls, target: Target, fallback: Any = None) -> Side:
        """The adapter of a target; the policy of the environment, unless one is given."""
        given = Settings.from_environ()
        alone = AdapterFilter(allowed=frozenset({target.record.name}))
        settings = Settings(
            fallback=fallback or given.fallback, adapter=target.record.name, adapters=alone
        )
        return cls(target, settings)

    @property
    def name(self) -> str:
        """The adapter's."""
        return self.target.record.name

    @cached_property
    def opened(self) -> OpenDevice:
        """The device, opened at the first use.

        Raises:
            NoSuchDevice: the adapter has none here.
        """
        if self.target.device is None:
            raise NoSuchDevice(
                f"adapter {self.name} has no device on this machine",
                hint="run on a machine that has it",
            )
        given = dataclasses.replace(Settings.from_environ(), adapters=self.settings.adapters)
        return open_record(self.target.record, self.target.device.index, given)

    def share(self, call: StoredCall) -> float:
        """Runs a call here and gives its largest share of the budget.

        Raises:
            Failure: the call raises, or gives what is wrong.
            VllmAdapterError: nothing runs the case.
        """
        device = self.opened.device
        binding = bind(OpCase.of(call.op, device, call.facts), self.settings)
        args = call.placed(device)
        if call.op in WEIGHT:
            args[WEIGHT[call.op]] = binding.prepare_weights(args[WEIGHT[call.op]])
        if SPECS[call.op].operator.planned:
            binding.plan(call.step(device))
            args[-1] = binding.handle
        try:
            results = binding.run(*args)
        except Exception as error:
            raise raised(call, error) from error
        return judged(call, results, args)


def raised(call: StoredCall, error: Exception) -> Failure:
    """A kernel's exception as a failure of its call."""
    return Failure(f"{call.op}: a result", f"{type(error).__name__}: {error}")


def judged(call: StoredCall, results: Any, args: Sequence[Any]) -> float:
    """Holds what a call gave, and wrote into `args`, against float64 and the suite's budget.

    Gives the largest share of the budget.

    Raises:
        Failure: a wrong value, shape, dtype or number of results, or a write that is not the
            operator's.
    """
    spec = SPECS[call.op]
    given = () if results is None else results
    found = list(given) if isinstance(given, (tuple, list)) else [given]
    names = [f"result {number}" for number in range(len(found))]
    names += [f"argument {number}" for number in spec.mutates]
    found += [args[number] for number in spec.mutates]
    wanted = _expected(call)
    if len(found) != len(wanted):
        raise Failure(
            f"{call.op}: {len(wanted) - len(spec.mutates)} results",
            f"{len(found) - len(spec.mutates)}",
        )
    held = [None] * (len(found) - len(spec.mutates)) + [call.args[n] for n in spec.mutates]
    worst = 0.0
    for name, got, want, before in zip(names, found, wanted, held, strict=True):
        worst = max(worst, _share(call, name, got, want, before))
    for number, (argument, was) in enumerate(zip(args, call.args, strict=True)):
        if number not in spec.mutates and call.comparable(number) and not _same(argument, was):
            raise Failure(
                f"{call.op}: no write outside the arguments that the schema marks as mutated",
                f"argument {number}, {tuple(argument.shape)}, changed",
            )
    return worst


def _share(
    call: StoredCall, name: str, got: Any, want: Expected, before: torch.Tensor | None
) -> float:
    if not isinstance(got, torch.Tensor) or got.shape != want.value.shape:
        shown = str(tuple(got.shape)) if isinstance(got, torch.Tensor) else type(got).__name__
        raise Failure(f"{call.op}: {name} is {tuple(want.value.shape)}", shown)
    dtype = str(got.dtype).removeprefix("torch.")
    if "result" in name and dtype != call.facts["dtype"]:
        raise Failure(f"{call.op}: {name} is {call.facts['dtype']}", dtype)
    terms = call.terms() or TRIALS[call.op].terms(call.facts)
    seen = compare(got, want, terms)
    if seen.share > 1:
        budget = budget_of(got.dtype, want, terms)
        axes = AXES.get(call.op, ())
        pattern = describe(got, want.value, budget, axes=axes, before=before, scale=want.magnitude)
        raise Failure(
            f"{call.op}: {name} within its error budget",
            f"{seen.share:.3g} of the budget at {list(seen.index)}: got {seen.got:.9g}, "
            f"want {seen.want:.9g}",
            share=seen.share,
            detail=f"pattern   {'; '.join(pattern.sentences)}",
            cause=pattern.cause,
        )
    return seen.share


def _expected(call: StoredCall) -> Sequence[Expected]:
    spec, trial = SPECS[call.op], TRIALS[call.op]
    wide = [
        argument.double()
        if isinstance(argument, torch.Tensor)
        and argument.is_floating_point()
        and (number not in trial.as_stored or number in spec.mutates)
        else argument.clone()
        if isinstance(argument, torch.Tensor) and number not in trial.as_stored
        else argument
        for number, argument in enumerate(call.args)
    ]
    wanted = list(trial.reference(*wide))
    first = len(wanted) - len(spec.mutates)
    for place, number in enumerate(spec.mutates, first):
        # What is copied is judged as the dtype that holds it can hold it.
        want = wanted[place]
        stored = want.value.to(call.args[number].dtype).double()
        value = torch.where(want.magnitude > 0, want.value, stored)
        wanted[place] = dataclasses.replace(want, value=value)
    return wanted


def _same(argument: Any, was: Any) -> bool:
    """Bit by bit, on the host."""
    if not isinstance(argument, torch.Tensor):
        return True
    now, then = (t.detach().cpu().contiguous().flatten() for t in (argument, was))
    return bool((now.view(torch.uint8) == then.view(torch.uint8)).all())
