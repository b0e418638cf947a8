"""The next token of each sequence: greedy, or drawn by temperature, top-k and top-p."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vllm_adapter.errors import InputError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence's tokens are chosen. Temperature 0 is greedy.

    `top_k` keeps the k likeliest, 0 all; `top_p` the likeliest that together reach this share.
    Raises InputError for values outside of these.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise InputError(f"temperature is {self.temperature}", hint="give 0 or more")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}", hint="give 0 for all, or a count")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}", hint="give more than 0, at most 1")


@dataclass(slots=True)
class Draws:
    """The random numbers of one sequence: others in its batch do not change them."""

    sampling: SamplingParams
    _random: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = torch.Generator().manual_seed(self.sampling.seed)

    def next(self) -> float:
        """Uniform in [0, 1)."""
        return float(torch.rand((), generator=self._random, dtype=torch.float64))


def next_tokens(logits: torch.Tensor, draws: Sequence[Draws]) -> torch.Tensor:
    """logits: [rows, vocabulary] -> int64[rows], on the same device."""
    chosen = logits.argmax(-1)
    rows = [row for row, one in enumerate(draws) if one.sampling.temperature > 0]
    if not rows:
        return chosen
    at = torch.tensor(rows).to(logits.device)
    chosen[at] = _drawn(logits.index_select(0, at).float(), [draws[row] for row in rows])
    return chosen


def _drawn(logits: torch.Tensor, draws: Sequence[Draws]) -> torch.Tensor:
    """logits: float32[rows, vocabulary] -> int64[rows], by the inverse of the distribution."""

    def column(values: list[float]) -> torch.Tensor:
        """Gives float32[rows, 1] on the logits' device."""
        return torch.tensor(values, dtype=torch.float32).to(logits.device)[:, None]

    given = [one.sampling for one in draws]
    size = logits.shape[1]
    ordered, names = (logits / column([s.temperature for s in given])).sort(-1, descending=True)
    rank = torch.arange(size, device=logits.device)
    kept = rank < column([float(s.top_k or size) for s in given])
    shares = ordered.masked_fill(~kept, -torch.inf).softmax(-1)
    # The first that reaches top_p is kept too.
    kept = shares.cumsum(-1) - shares < column([s.top_p for s in given])
    sums = (shares * kept).cumsum(-1)
    wanted = column([one.next() for one in draws]) * sums[:, -1:]
    place = torch.searchsorted(sums, wanted, right=True).clamp(max=size - 1)
    last = kept.sum(-1, keepdim=True) - 1
    return names.gather(1, torch.minimum(place, last)).squeeze(1)
