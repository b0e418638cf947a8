"""Watches every operator call of an adapted model, and holds each against the reference.

Each call is judged on the very arguments that it got. As long as all were within their budgets,
both sides had equal inputs; the first that is not is where the model leaves the reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from vllm_adapter.engine.integrations import layers
from vllm_adapter.engine.ops.bind import Binding
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.bisecting.side import WEIGHT, judged, raised
from vllm_adapter_conformance.bisecting.stored import COPIED, StoredCall, on_host

Weights = WeakKeyDictionary[torch.nn.Module, torch.Tensor]


@dataclass
class DivergentCall:
    """The first call that left the reference. `forward` 0 is the prefill, then one a step."""

    call: StoredCall
    failure: Failure
    path: str
    forward: int
    number: int
    kernel: str
    providers: tuple[str, ...]


class Found(Exception):
    """Ends the forward in which something was found."""

    def __init__(self, finding: DivergentCall) -> None:
        super().__init__(finding.failure.seen)
        self.finding = finding


@dataclass
class Recorder:
    """Judges the calls of one model."""

    weights: Weights
    fallback: str
    forward: int = 0
    """Which forward runs; set by whoever runs the model."""
    count: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    """The largest share of the budget, by operator."""
    last: str = ""
    """The call that runs now, in words."""

    def install(self, model: torch.nn.Module) -> None:
        """Puts itself between the model's layers and what they bound."""
        for path, module in model.named_modules():
            bindings: tuple[Binding, ...] = getattr(module, "bindings", ())
            for binding in bindings:
                for name, value in list(vars(module).items()):
                    if value is binding.run:
                        # Past the seal of an adapted model's parts: what is called stays the same.
                        vars(module)[name] = self._watched(path, module, binding)

    def _watched(self, path: str, module: torch.nn.Module, binding: Binding) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            return self._judged(path, module, binding, args)

        return run

    def _judged(
        self, path: str, module: torch.nn.Module, binding: Binding, args: tuple[Any, ...]
    ) -> Any:
        op, facts = binding.case.op, dict(binding.case.facts)
        mutates = SPECS[op].mutates
        self.count += 1
        self.last = f"{op} at {path}"
        host = [_kept(argument, number in mutates) for number, argument in enumerate(args)]
        if op in WEIGHT and module in self.weights:
            host[WEIGHT[op]] = _kept(self.weights[module], False)
        call = StoredCall(op, facts, host, path, self.fallback)
        try:
            try:
                result = binding.run(*args)
            except Exception as error:
                raise raised(call, error) from error
            share = judged(call, result, args)
        except Failure as failure:
            kernel, who = _kernel(binding, call), binding.providers
            finding = DivergentCall(call, failure, path, self.forward, self.count, kernel, who)
            raise Found(finding) from failure
        self.worst[op] = max(self.worst.get(op, 0.0), share)
        return result


def _kept(argument: Any, written: bool) -> Any:
    """An argument as it is now; what is large and only read is not copied within the host."""
    if not isinstance(argument, torch.Tensor):
        return argument
    if not written and argument.numel() > COPIED:
        return argument.detach().cpu()
    return on_host(argument)


def _kernel(binding: Binding, call: StoredCall) -> str:
    """The function that ran, as its descriptor names it."""
    pick = binding.picks.get(None)
    if pick is None:
        pick = binding.picks[call.step().phase]
    return str(pick.entry.run)


@contextlib.contextmanager
def original_weights() -> Iterator[Weights]:
    """Keeps the weight that each of our linears is made with, before anybody prepares it."""
    kept: Weights = WeakKeyDictionary()
    made = layers.Linear.__init__

    def init(self: Any, weight: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        made(self, weight, *args, **kwargs)
        kept[self] = weight

    layers.Linear.__init__ = init  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        layers.Linear.__init__ = made  # type: ignore[method-assign]
