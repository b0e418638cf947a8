"""One call of an operator as plain data, and on the device: drawn here, made there.

Imports torch: rules import it inside their checks only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vllm_adapter.engine.ops.bind import Binding
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.step import Step, make_step
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.ops import runs
from vllm_adapter_conformance.ops.cases import Facts
from vllm_adapter_conformance.ops.dimensions import SAMPLED
from vllm_adapter_conformance.ops.space import plain_choice
from vllm_adapter_conformance.ops.trial import Expected, Sample
from vllm_adapter_conformance.ops.trials import TRIALS

PlainCall = Mapping[str, Any]
"""`op`, `facts`, `args` (host tensors and numbers) and `step` (lengths and blocks, or None)."""


def plain_call(op: str, facts: Facts, sample: Sample) -> PlainCall:
    """A sample as data that another process can be given."""
    step = sample.step(torch.device("cpu")) if sample.step else None
    return {
        "op": op,
        "facts": dict(facts),
        "args": list(sample.build(torch.Tensor.clone)),
        "step": step
        and {
            "query_lens": step.query_lens,
            "context_lens": step.context_lens,
            "block_table": step.block_table.tolist(),
            "block_size": step.block_size,
        },
    }


def sized(op: str, facts: Facts, sizes: Mapping[str, Any], seed: str) -> Sample:
    """A sample of these sizes; what they leave open is plain. Names that an operator lacks do
    not matter."""
    given = {name: value for name, value in sizes.items() if name in SAMPLED[op]}
    return TRIALS[op].draw(facts, {**plain_choice(op, {}), **given}, seed)


def expected(call: PlainCall, sample: Sample) -> Sequence[Expected]:
    """The float64 reference of a call: its results, then the arguments that are written."""
    return runs.expected(runs.DeviceCall(SPECS[call["op"]], sample, list(call["args"]), []))


def step_of(call: PlainCall, device: torch.device | str) -> Step:
    """The step of a planned call, on a device."""
    step = call["step"]
    return make_step(
        tuple(step["query_lens"]),
        tuple(step["context_lens"]),
        step["block_table"],
        step["block_size"],
        device,
    )


@dataclass
class ReadyCall:
    """A call on the device, its weight prepared and its step planned."""

    binding: Binding
    args: list[Any]
    mutated: list[torch.Tensor]
    _before: list[torch.Tensor]

    @classmethod
    def on(cls, bench: Bench, call: PlainCall) -> ReadyCall:
        """Binds it under policy `error`; the plan, where there is one, is made once."""
        op = call["op"]
        binding = bench.bind(op, dict(call["facts"]))
        args = [
            bench.to_device(one) if isinstance(one, torch.Tensor) else one for one in call["args"]
        ]
        if op in runs.WEIGHTS:
            at = runs.WEIGHTS[op]
            args[at] = binding.prepare_weights(args[at])
        if SPECS[op].operator.planned:
            binding.plan(step_of(call, bench.device))
            args[-1] = binding.handle
        mutated = [args[at] for at in SPECS[op].mutates]
        return cls(binding, args, mutated, [one.clone() for one in mutated])

    def run(self) -> tuple[Any, ...]:
        """Calls once; gives the results."""
        return runs.as_tuple(self.binding.run(*self.args))

    def reset(self) -> None:
        """Gives the arguments that a call writes their first contents again."""
        for argument, held in zip(self.mutated, self._before, strict=True):
            argument.copy_(held)
