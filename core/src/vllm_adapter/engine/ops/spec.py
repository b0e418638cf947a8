"""What an operator is to torch: schema, fake, portable form, and how a case is read off.

The torch-free side of an operator (facts, off values, dtypes) is `contract.operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vllm_adapter.contract.operators import FactValue, Operator

Fn = Callable[..., Any]
Facts = Mapping[str, FactValue]


@dataclass(frozen=True, slots=True)
class OpCase:
    """An operator on a device with every bind fact settled; `dtype` is one of the facts."""

    op: str
    device: str
    facts: tuple[tuple[str, FactValue], ...]

    @classmethod
    def of(cls, op: str, device: torch.device | str, facts: Facts) -> OpCase:
        """A case with its facts in canonical order, hence hashable and comparable."""
        return cls(op, str(device), tuple(sorted(facts.items())))

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.facts)
        return f"{self.op}({facts}) on {self.device}"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operator. All overloads share `schema`: torch aborts at exit when they differ."""

    operator: Operator
    schema: str
    """Arguments and result, such as "(Tensor x, Tensor weight, float eps) -> Tensor"."""
    fake: Fn
    """Shapes and dtypes of the result, from those of the arguments."""
    generic: Fn
    """Portable torch for any device: the provider `torch`."""
    facts_of: Callable[..., dict[str, FactValue]]
    """Every bind fact and the dtype, read off the arguments."""
    key_of: Callable[..., tuple[Any, ...]]
    """What `facts_of` reads, and the device, as a tuple that is cheap to make."""
    mutates: tuple[int, ...] = ()
    """Indices of the arguments that are written in place."""
    compose: Callable[[Fn], Fn] | None = None
    """Makes this operator from one that runs `operator.composed_of`."""

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.operator.name


def dtype_name(tensor: torch.Tensor) -> str:
    """The dtype as descriptors write it: "float32"."""
    return str(tensor.dtype).removeprefix("torch.")
