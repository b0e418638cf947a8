"""Products with weights in fewer bits: entry points for descriptors."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter_triton.launch import next_power_of_2

GROUP: Final = 32
"""Weights of four bits that share a scale: `contract.operators.INT4_GROUP` of core."""
_TILE_N: Final = 64
_TILE_K: Final = 64
_MOST_ROWS: Final = 64


def quantized_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """x[..., in], bias[out] -> [..., out], by weights of a scheme as core stores them.

    weight: int8 or float8 [out, in] with scale float32[out, 1], or uint8[out, ceil(in / 2)] with
    scale and zero float32[out, ceil(in / 32)]. Where they are floats, x is rounded to the same
    float row by row, and both go to the chip's units of eight bits.
    """
    from vllm_adapter_triton.kernels import quantized as kernels

    width = x.shape[-1]
    rows = x.reshape(-1, width)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    count = rows.shape[0]
    out = torch.empty(count, out_features, dtype=x.dtype, device=x.device)
    if count:
        by = None
        if scheme.startswith("float8"):
            rows, by = round_rows(rows, weight.dtype)
        tile = min(_MOST_ROWS, max(16, next_power_of_2(count)))
        kernels.product[(-(-count // tile), -(-out_features // _TILE_N))](
            rows, weight, scale, scale if zero is None else zero,
            scale if bias is None else bias.contiguous(), scale if by is None else by, out,
            count, width, out_features, rows.stride(0), weight.stride(0), scale.shape[1],
            IS_INT4=scheme == "int4", HAS_BIAS=bias is not None, HAS_BY=by is not None,
            GROUP=GROUP, TILE_M=tile, TILE_N=_TILE_N,
            TILE_K=GROUP if scheme == "int4" else _TILE_K,
            PRECISION="ieee" if x.dtype is torch.float32 else "tf32", num_warps=4,
        )  # fmt: skip
    return out.view(*x.shape[:-1], out_features)


def round_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x[rows, width] in a float of eight bits, and what each row was divided by: float32[rows]."""
    from vllm_adapter_triton.kernels import quantized as kernels

    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    by = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    size, info = next_power_of_2(x.shape[1]), torch.finfo(dtype)
    kernels.round_rows[(x.shape[0],)](
        x, out, by, x.shape[1], x.stride(0), info.max, info.smallest_normal,
        SIZE=size, num_warps=min(16, max(1, size // 512)),
    )  # fmt: skip
    return out, by
