"""One call of an operator, apart from the model that made it; in memory or in a file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.step import Step, make_step
from vllm_adapter_conformance.ops.cases import Facts

_LENGTHS: Final[Mapping[str, int]] = {"attention": 3, "paged_attention": 5}
"""The argument with the running sum of the sequences' lengths: query_start_loc."""
_TABLE: Final = 3
_SEQ_LENS: Final = 4
COPIED: Final = 1 << 20
"""Arguments of more elements, weights and tables, are not compared with what they were."""
_DENSE: Final = 4
"""A view whose memory is more than so many times its elements is stored without its gaps."""


@dataclass(frozen=True)
class StoredCall:
    """The arguments of one call on the host, as they were before it.

    A weight is as checkpoints have it: whoever runs the call prepares it anew. What lies beside a
    strided view is not kept, and is NaN when the call is made again.
    """

    op: str
    facts: Facts
    args: Sequence[Any]
    where: str
    """The module in its model, in words."""
    fallback: str = "error"
    """The policy that the case was bound under."""

    def placed(self, device: torch.device) -> list[Any]:
        """The arguments on a device, each in memory of its own."""
        return [_placed(argument, device) for argument in self.args]

    def comparable(self, number: int) -> bool:
        """Whether an argument must still be what it was: a weight may have been prepared."""
        argument = self.args[number]
        small = isinstance(argument, torch.Tensor) and argument.numel() <= COPIED
        return small and not (self.op == "linear" and number == 1)

    def step(self, device: torch.device | str = "cpu") -> Step:
        """The step of a planned operator, from its tables; slots follow from the blocks."""
        starts = self.args[_LENGTHS[self.op]].tolist()
        contexts = tuple(self.args[_SEQ_LENS].tolist())
        queries = tuple(b - a for a, b in itertools.pairwise(starts))
        block = self.args[1].shape[1]
        table = self.args[_TABLE]
        rows = [table[i, : -(-c // block)].tolist() for i, c in enumerate(contexts)]
        return make_step(queries, contexts, rows, block, device)

    def terms(self) -> int | None:
        """The longest sum of attention, which is as long as a context; else as facts have it."""
        if self.op not in _LENGTHS:
            return None
        size = int(self.facts["head_size"])
        if self.op == "paged_attention":
            lengths: list[int] = self.args[_SEQ_LENS].tolist()
        else:
            lengths = self.args[_LENGTHS[self.op]].diff().tolist()
        return max(size, *lengths, 1)

    def save(self, path: Path) -> None:
        """Writes it, for `load`."""
        torch.save(
            {
                "op": self.op,
                "facts": dict(self.facts),
                "args": list(self.args),
                "where": self.where,
                "fallback": self.fallback,
            },
            path,
        )

    @classmethod
    def load(cls, path: Path) -> StoredCall:
        """Reads what `save` wrote; runs nothing that is in the file."""
        return cls(**torch.load(path, weights_only=True))


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor [...] on the host; with its strides if its memory has few gaps."""
    held = tensor.detach()
    span = 1 + sum((size - 1) * step for size, step in zip(held.shape, held.stride(), strict=True))
    # Elements of an expanded view share memory: span is less than their number.
    if held.is_contiguous() or not held.numel() <= span <= _DENSE * held.numel():
        return held.cpu().clone(memory_format=torch.contiguous_format)
    memory = torch.zeros(span, dtype=held.dtype)
    return memory.as_strided(held.shape, held.stride()).copy_(held)


def _placed(argument: Any, device: torch.device) -> Any:
    """An argument on a device; the gaps of a view are no numbers there."""
    if not isinstance(argument, torch.Tensor):
        return argument
    if argument.is_contiguous():
        return argument.clone().to(device)
    span = 1 + sum((n - 1) * s for n, s in zip(argument.shape, argument.stride(), strict=True))
    filler = torch.nan if argument.is_floating_point() else 0
    memory = torch.full((span,), filler, dtype=argument.dtype)
    memory.as_strided(argument.shape, argument.stride()).copy_(argument)
    return memory.to(device).as_strided(argument.shape, argument.stride())
