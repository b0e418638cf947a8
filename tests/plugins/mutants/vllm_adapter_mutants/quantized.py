"""Wrong products of weights in fewer bits, each with one fault."""

from __future__ import annotations

import torch

from vllm_adapter import generic

right = generic.quantized_linear
Maybe = torch.Tensor | None


def bias_left_out(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: Maybe,
    bias: Maybe,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """Adds no bias."""
    return right(x, weight, scale, zero, None, out_features, scheme)


def halves_swapped(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: Maybe,
    bias: Maybe,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """Takes the high half of a byte for the even element."""
    if scheme == "int4":
        weight = weight << 4 | weight >> 4
    return right(x, weight, scale, zero, bias, out_features, scheme)


def zero_ignored(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: Maybe,
    bias: Maybe,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """Has the middle of the values for every zero point."""
    if scheme == "int4":
        zero = -7.5 * scale
    return right(x, weight, scale, zero, bias, out_features, scheme)


def one_scale(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: Maybe,
    bias: Maybe,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """Has one scale for the whole weight where there is one a row."""
    if scheme != "int4":
        scale = scale.mean().expand_as(scale)
    return right(x, weight, scale, zero, bias, out_features, scheme)


def last_group_of_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: Maybe,
    bias: Maybe,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """Groups of 64, as other formats have them: each second scale is not read."""
    if scheme == "int4" and zero is not None:
        at = torch.arange(scale.shape[1]) // 2 * 2
        scale, zero = scale[:, at], zero[:, at]
    return right(x, weight, scale, zero, bias, out_features, scheme)


def one_row_scale(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: Maybe,
    bias: Maybe,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """Rounds x to the float without scaling its rows: what is large saturates."""
    if scheme.startswith("float8"):
        most = torch.finfo(weight.dtype).max
        x = x.clamp(-most, most).to(weight.dtype).to(x.dtype)
    return right(x, weight, scale, zero, bias, out_features, scheme)


def other_flavour(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: Maybe,
    bias: Maybe,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """Reads the bits of one float of eight bits as the other's."""
    if scheme == "float8_e4m3fnuz":
        weight, scheme = weight.view(torch.float8_e4m3fn), "float8_e4m3fn"
    return right(x, weight, scale, zero, bias, out_features, scheme)
