"""Operators with a fault that shows in a whole model."""

from __future__ import annotations

from typing import Any

import torch

from vllm_adapter import generic

_before: list[tuple[torch.Tensor, torch.Tensor]] = []


def rope_of_ten_thousand(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """Computes its own table, of the base that most models have."""
    size = query.shape[-1]
    base = 10000.0 ** -(torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.arange(cos_sin_cache.shape[0])[:, None] * base
    table = torch.cat((angles.cos(), angles.sin()), -1).to(cos_sin_cache.dtype)
    generic.rotary_embedding(positions, query, key, table, interleaved)


def rope_scaled_twice(positions: torch.Tensor, *rest: Any) -> None:
    """Scales positions that the table scales already."""
    generic.rotary_embedding(positions // 2, *rest)


def writes_to_the_layer_before(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Keeps the caches of one call for the next."""
    _before.append((key_cache, value_cache))
    caches = _before[0] if _before[0][0].shape == key_cache.shape else _before[-1]
    del _before[:-1]
    generic.reshape_and_cache(key, value, *caches, slot_mapping)


def scale_of_sixty_four(*args: Any) -> torch.Tensor:
    """The scale of heads of 64, whatever was asked for."""
    *given, _scale, window, soft_cap, state = args
    return generic.paged_attention(*given, 64**-0.5, window, soft_cap, state)


def one_text(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, *rest: Any
) -> torch.Tensor:
    """The batch is taken to be one text: its mask is lost."""
    return generic.attention(query, key, value, starts[[0, -1]], *rest)
