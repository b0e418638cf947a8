"""Kernels: plain torch for now, each to become a call of the chip's own library."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """x[..., in], weight[out_features, in], bias[out_features] -> [..., out_features]."""
    return F.linear(x, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[..., hidden], weight[hidden] -> [..., hidden] of x's dtype; computed in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x[..., 2 d] -> [..., d]: silu(x[..., :d]) * x[..., d:]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up
