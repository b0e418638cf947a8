"""Whoever asks an adapted model for gradients is told: its operators have none.

A forward outside of `torch.no_grad()` is no such question, for most people never ask. So the
outputs look as those of the plain model do, and say it when torch goes back through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from vllm_adapter.engine.integrations.transformers.place import Replacement
from vllm_adapter.errors import UnsupportedModel


@dataclass(eq=False)
class Asked:
    """Watches one module of an adapted model, the whole or its base.

    Its parameters are also those of the modules that ours stand for: no table of torch holds them
    while they are replaced.
    """

    part: torch.nn.Module
    replaced: Sequence[torch.nn.Module]

    @classmethod
    def of(cls, part: torch.nn.Module, restore: Iterable[Replacement]) -> Asked:
        """What stood anywhere in the part is its own."""
        inside = {id(module) for module in part.modules()}
        return cls(part, [original for parent, _, original in restore if id(parent) in inside])

    def install(self) -> Callable[[], None]:
        """Begins; gives the way back."""
        vars(self.part)["requires_grad_"] = self.freeze
        hook = self.part.register_forward_hook(self.refuse_later, with_kwargs=True)

        def undo() -> None:
            hook.remove()
            vars(self.part).pop("requires_grad_", None)

        return undo

    def freeze(self, requires_grad: bool = True) -> torch.nn.Module:
        """In the place of `requires_grad_`, which would reach half of the parameters."""
        for module in self.replaced:
            for parameter in module.parameters():
                parameter.requires_grad_(requires_grad)
        return type(self.part).requires_grad_(self.part, requires_grad)

    def refuse_later(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> Any:
        """A forward hook: floating outputs of what could have gradients refuse them."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        theirs = (parameter for module in self.replaced for parameter in module.parameters())
        if not _wanted(chain(model.parameters(), theirs, args, kwargs.values())):
            return None
        if isinstance(output, tuple):
            return tuple(_refusing(value) for value in output)
        if isinstance(output, dict):
            for key, value in list(output.items()):
                if isinstance(value, torch.Tensor):
                    output[key] = _refusing(value)
        return output


def _wanted(values: Iterable[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _refusing(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    if value.requires_grad:  # of a head that runs as it is: its own weights have gradients
        return value
    leaf = torch.empty(0, device=value.device, requires_grad=True)
    result = _Refusing.apply(value, leaf)  # type: ignore[no-untyped-call]  # torch's
    return result


class _Refusing(torch.autograd.Function):
    """Gives its first argument; a second one that wants a gradient makes torch come back."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        """The value itself."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Refused.

        Raises:
            UnsupportedModel: always.
        """
        raise UnsupportedModel(
            "gradients of an adapted model are asked for, and it serves inference only",
            hint="unadapt(model), then train it or ask it for gradients; to train a head of your "
            "own, freeze the rest: requires_grad_(False)",
        )
