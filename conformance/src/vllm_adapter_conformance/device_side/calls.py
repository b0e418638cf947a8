"""What calls of operators have in common, wherever they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_adapter.engine.device_process.held import as_tuple
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.step import Step, make_step

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.ops.bind import Binding

WEIGHTS: Final[Mapping[str, int]] = {"linear": 1}
"""Which argument of an operator `prepare_weights` may change."""


def step_of(call: Mapping[str, Any], device: torch.device | str) -> Step:
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
    def on(cls, device: HeldDevice, call: Mapping[str, Any]) -> ReadyCall:
        """Binds it under policy `error`; the plan, where there is one, is made once."""
        op = call["op"]
        binding = device.bind(op, dict(call["facts"]))
        args = [
            device.to_device(one) if isinstance(one, torch.Tensor) else one for one in call["args"]
        ]
        if op in WEIGHTS:
            at = WEIGHTS[op]
            args[at] = binding.prepare_weights(args[at])
        if SPECS[op].operator.planned:
            binding.plan(step_of(call, device.device))
            args[-1] = binding.handle
        mutated = [args[at] for at in SPECS[op].mutates]
        return cls(binding, args, mutated, [one.clone() for one in mutated])

    def run(self) -> tuple[Any, ...]:
        """Calls once; gives the results."""
        return as_tuple(self.binding.run(*self.args))

    def reset(self) -> None:
        """Gives the arguments that a call writes their first contents again."""
        for argument, held in zip(self.mutated, self._before, strict=True):
            argument.copy_(held)
