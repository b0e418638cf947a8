"""One call of an operator on the device, made of plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.step import make_step

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

WEIGHTS: Final[Mapping[str, int]] = {"linear": 1, "quantized_linear": 1}
"""Which argument of an operator `prepare_weights` may change."""
PlainCall = Mapping[str, Any]
"""`op`, `facts`, `args` (host tensors and numbers) and `step` (lengths and blocks, or None)."""


class ReadyCall:
    """A call on the device, bound under policy `error`, its weight prepared and its step planned.

    `owner` as `HeldDevice.bind` has it.
    """

    def __init__(self, device: HeldDevice, call: PlainCall, owner: object = None) -> None:
        op = call["op"]
        self.binding = device.bind(op, dict(call["facts"]), owner)
        self.args = [
            device.to_device(arg) if isinstance(arg, torch.Tensor) else arg for arg in call["args"]
        ]
        self.mutated = [self.args[at] for at in SPECS[op].mutates]
        self._held = [argument.clone() for argument in self.mutated]
        if op in WEIGHTS:
            self.args[WEIGHTS[op]] = self.binding.prepare_weights(self.args[WEIGHTS[op]])
        self.step = call["step"] and make_step(**call["step"], device=device.device)
        self.plan()
        if self.step is not None:
            self.args[-1] = self.binding.handle

    def plan(self) -> None:
        """Plans its step, where it has one."""
        if self.step is not None:
            self.binding.plan(self.step)

    def reset(self) -> None:
        """Gives the arguments that a call writes their first contents again."""
        for argument, held in zip(self.mutated, self._held, strict=True):
            argument.copy_(held)

    def run(self) -> tuple[torch.Tensor, ...]:
        """Calls once; gives the results."""
        found = self.binding.run(*self.args)
        return () if found is None else found if isinstance(found, tuple) else (found,)
