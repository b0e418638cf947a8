"""Right kernels, as another provider than the device's own adapter would have them."""

from __future__ import annotations

import torch

from vllm_adapter import generic, implementation


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[..., hidden], weight[hidden] -> [..., hidden]."""
    return generic.rms_norm(x, weight, eps)


@implementation(op="embedding", dtypes=["float32"])
def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """ids int64[...], weight[rows, hidden] -> [..., hidden]."""
    return generic.embedding(ids, weight)
