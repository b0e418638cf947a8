"""Products with weights in fewer bits."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vllm_adapter.contract.operators import INT4_GROUP


def quantized_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """x[..., in], bias[out] -> [..., out], by weights[out, in] of the scheme.

    int8: weight int8[out, in], scale float32[out, 1]. int4: weight uint8[out, ceil(in / 2)], the
    even element in the low half; scale and zero float32[out, ceil(in / 32)]: value * scale + zero.
    float8: weight of that float [out, in], scale float32[out, 1]; x is rounded to it, row by row.
    """
    if scheme.startswith("float8"):
        rounded, by = rounded_rows(x, weight.dtype)
        # The sums are far beyond float16 before they are scaled.
        product = F.linear(rounded.float(), weight.float()) * by * scale.squeeze(1)
        return (product if bias is None else product + bias.float()).to(x.dtype)
    if scheme == "int4":
        wide = unpacked(weight, x.shape[-1]).float()
        each, shift = (_spread(t, x.shape[-1]) for t in (scale, zero))
        return F.linear(x, torch.addcmul(shift, wide, each).to(x.dtype), bias)
    if x.dtype == torch.float16:  # which cannot hold a sum before it is scaled
        return F.linear(x, (weight.float() * scale).to(x.dtype), bias)
    product = F.linear(x, weight.to(x.dtype)) * scale.squeeze(1).to(x.dtype)
    return product if bias is None else product + bias


def rounded_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x[..., width] in a float of eight bits, and what each row was divided by: float32[..., 1].

    The largest element of a row becomes the float's largest value.
    """
    most = torch.finfo(dtype).max
    wide = x.float()
    peak = wide.abs().amax(-1, keepdim=True) if x.numel() else wide.new_zeros((*x.shape[:-1], 1))
    by = (peak / most).clamp(min=torch.finfo(torch.float32).smallest_normal)
    return (wide / by).clamp(-most, most).to(dtype), by


def unpacked(packed: torch.Tensor, width: int) -> torch.Tensor:
    """uint8[rows, ceil(width / 2)], two values each -> uint8[rows, width] of 0 to 15."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)[..., :width]


def _spread(groups: torch.Tensor | None, width: int) -> torch.Tensor:
    """float32[rows, groups] -> [rows, width]."""
    assert groups is not None
    return groups.repeat_interleave(INT4_GROUP, -1)[..., :width]
