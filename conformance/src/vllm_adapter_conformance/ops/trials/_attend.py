"""The float64 reference of attention, shared by the operators with and without a cache."""

from __future__ import annotations

import torch


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    causal: bool,
    window: int,
    soft_cap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query[Q, H, D], at the end of keys and values[C, KH, D] -> value, magnitude, amplification.

    An error of a score moves its weight by as much, relatively: the amplification is 1 plus the
    size of the largest score's terms, and of the soft cap, whose tanh is rounded too.
    """
    length, context = query.shape[0], keys.shape[0]
    if not length:
        return query, query, query
    # What lies before every query's window takes no part, not even as zero times NaN.
    first = max(0, context - length - window + 1) if window else 0
    keys, values, context = keys[first:], values[first:], context - first
    ratio = query.shape[1] // keys.shape[1]
    keys, values = (t.repeat_interleave(ratio, dim=1).transpose(0, 1) for t in (keys, values))
    mine = query.transpose(0, 1)
    scores = mine @ keys.transpose(1, 2) * scale
    terms = (mine.square() @ keys.square().transpose(1, 2)).sqrt() * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    before = torch.arange(context - length, context)[:, None] - torch.arange(context)
    hidden = torch.zeros_like(before, dtype=torch.bool)
    if causal:
        hidden |= before < 0
    if window:
        hidden |= before.abs() >= window
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    magnitude = (weights.square() @ values.square()).sqrt()
    largest = terms.masked_fill(hidden, 0).amax(-1, keepdim=True)
    growth = (1 + largest + soft_cap).expand_as(magnitude)
    found = (weights @ values, magnitude, growth)
    return tuple(t.transpose(0, 1) for t in found)  # type: ignore[return-value]  # three
