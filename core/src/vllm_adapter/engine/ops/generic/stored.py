"""Caches in a float of eight bits, which torch neither gathers nor scatters: by their bytes."""

from __future__ import annotations

import torch


def as_bytes(cache: torch.Tensor) -> torch.Tensor:
    """The cache itself, or the bytes of a float of eight bits: what can be indexed."""
    return cache.view(torch.uint8) if is_float8(cache.dtype) else cache


def is_float8(dtype: torch.dtype) -> bool:
    """Whether a dtype is a float of eight bits."""
    return dtype.is_floating_point and dtype.itemsize == 1


def read_rows(rows: torch.Tensor, stored: torch.dtype, dtype: torch.dtype) -> torch.Tensor:
    """Rows of `as_bytes` of a cache of `stored`, in `dtype`; plain rows stay as they are."""
    return rows.view(stored).to(dtype) if is_float8(stored) else rows


def stored_rows(rows: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """Rows as `as_bytes` of a cache of `stored` takes them; what is too large is the largest."""
    if not is_float8(stored):
        return rows.to(stored)
    most = torch.finfo(stored).max
    return rows.clamp(-most, most).to(stored).view(torch.uint8)
