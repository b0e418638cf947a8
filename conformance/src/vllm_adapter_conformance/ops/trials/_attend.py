"""The float64 reference of attention, shared by the operators with and without a cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch

from vllm_adapter_conformance.ops.trial import Expected

Pair = tuple[torch.Tensor, torch.Tensor]
GROUP_ELEMENTS: Final = 1 << 22
"""Scores that are computed at once."""


class Masking(NamedTuple):
    """Which keys a query sees, and how its scores are bounded."""

    causal: bool
    window: int
    soft_cap: float


def packed(
    query: torch.Tensor,
    starts: Sequence[int],
    contexts: Sequence[int],
    gathered: Callable[[Sequence[int]], Pair],
    scale: float,
    mask: Masking,
) -> Expected:
    """Attention of packed sequences, those of equal lengths at once.

    query: float64 [T, H, D], of which sequence i has the rows from starts[i] to starts[i + 1].
    `gathered` gives the keys and values of some sequences of one context, float64 [n, C, KH, D].
    """
    outs = [torch.empty_like(query) for _ in range(3)]
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, context in enumerate(contexts):
        length = starts[number + 1] - starts[number]
        if length:
            alike[length, context].append(number)
    for (length, context), numbers in alike.items():
        most = max(1, GROUP_ELEMENTS // (length * context * query.shape[1]))
        for first in range(0, len(numbers), most):
            some = numbers[first : first + most]
            begins = torch.tensor([starts[n] for n in some], device=query.device)
            places = torch.arange(length, device=query.device)
            rows = (begins[:, None] + places).flatten()
            mine = query[rows].reshape(len(some), length, *query.shape[1:])
            found = attend(mine, *gathered(some), scale, mask)
            for out, part in zip(outs, found, strict=True):
                out[rows] = part.flatten(0, 1)
    return Expected(*outs)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    mask: Masking,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query[n, Q, H, D], at the end of keys and values[n, C, KH, D].

    Gives value, magnitude and amplification, [n, Q, H, D] each. An error of a score moves its
    weight by as much, relatively: the amplification is 1 plus the size of the largest score's
    terms, and of the soft cap, whose tanh is rounded too, by how far the sum grew on its way; and
    what the roundings of the weights' own sum may add up to.
    """
    length, context = query.shape[1], keys.shape[1]
    window, soft_cap = mask.window, mask.soft_cap
    # What lies before every query's window takes no part, not even as zero times NaN.
    first = max(0, context - length - window + 1) if window else 0
    keys, values, context = keys[:, first:], values[:, first:], context - first
    heads = keys.shape[2]
    # [n, KH, ratio, Q, D] beside [n, KH, 1, C, D]: the heads of a group share their keys.
    split = query.reshape(len(query), length, heads, -1, query.shape[-1])
    mine = split.permute(0, 2, 3, 1, 4)
    keys, values = (t.transpose(1, 2).unsqueeze(2) for t in (keys, values))
    scores = mine @ keys.transpose(-1, -2) * scale
    terms = (mine.square() @ keys.square().transpose(-1, -2)).sqrt() * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    places = torch.arange(context, device=query.device)
    before = places[context - length :, None] - places
    hidden = torch.zeros_like(before, dtype=torch.bool)
    if mask.causal:
        hidden |= before < 0
    if window:
        hidden |= before.abs() >= window
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    magnitude = (weights.square() @ values.square()).sqrt()
    largest = terms.masked_fill(hidden, 0).amax(-1, keepdim=True)
    value = weights @ values
    # The sum of the weights has one sign, and so may that of the values: its roundings are as
    # large as what was added up so far, which is more than the root of the squares.
    share = (value.abs() / magnitude).nan_to_num(1)
    # Weights that are all but equal, added one by one, are rounded the same way each time: a sum
    # of n is off by up to n / 4 eps of itself, and so is the result. Those that count are n.
    alike = weights.square().sum(-1, keepdim=True).rsqrt() / 8
    found = (value, magnitude, (1 + largest + soft_cap) * share.clamp(min=1) + alike * share)
    # [n, KH, ratio, Q, D] -> [n, Q, H, D]
    one, two, three = (t.permute(0, 3, 1, 2, 4).flatten(2, 3) for t in found)
    return one, two, three
