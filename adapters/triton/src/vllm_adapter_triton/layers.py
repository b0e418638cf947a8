"""Norms, gates, rotation and the KV write: entry points for descriptors.

Each takes any layout whose last dimension is dense, and copies where it is not. Rows wider than
`WIDEST` are beyond one program: descriptors name that limit.
"""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter_triton.launch import next_power_of_2

WIDEST: Final = 65536
"""Elements of a row that one program holds."""
GATE_PART: Final = 1024
"""Elements of a row that one program of an activation takes."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[..., hidden], weight[hidden] -> [..., hidden]; computed in float32."""
    from vllm_adapter_triton.kernels import layers as kernels

    rows = _rows(x)
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    if rows.numel():
        width = rows.shape[1]
        kernels.rms_norm[(rows.shape[0],)](
            rows, _line(weight), out, width, rows.stride(0), out.stride(0), eps, **_row(width)
        )
    return out.view(x.shape)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), both [..., hidden]."""
    from vllm_adapter_triton.kernels import layers as kernels

    rows, others = _rows(x), _rows(residual)
    out, total = (torch.empty(rows.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    if rows.numel():
        width = rows.shape[1]
        kernels.fused_add_rms_norm[(rows.shape[0],)](
            rows, others, _line(weight), out, total, width,
            rows.stride(0), others.stride(0), out.stride(0), total.stride(0), eps, **_row(width),
        )  # fmt: skip
    return out.view(x.shape), total.view(x.shape)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x[..., 2 d] -> silu(x[..., :d]) * x[..., d:]."""
    from vllm_adapter_triton.kernels import layers as kernels

    rows = _rows(x)
    width = rows.shape[1] // 2
    out = torch.empty(rows.shape[0], width, dtype=x.dtype, device=x.device)
    if out.numel():
        size = min(GATE_PART, next_power_of_2(width))
        kernels.silu_and_mul[(rows.shape[0], -(-width // size))](
            rows, out, width, rows.stride(0), out.stride(0), SIZE=size, num_warps=4
        )
    return out.view(*x.shape[:-1], width)


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """Rotates query[T, H, D] and key[T, KH, D] in place by positions int64[T].

    cos_sin_cache[positions, R] holds cos, then sin; only the first R elements of a head turn.
    """
    from vllm_adapter_triton.kernels import layers as kernels

    table = cos_sin_cache if cos_sin_cache.stride(1) == 1 else cos_sin_cache.contiguous()
    half = table.shape[1] // 2
    for heads in (query, key):
        turned = heads if heads.stride(-1) == 1 else heads.contiguous()
        if turned.numel():
            kernels.rotate[turned.shape[:2]](
                positions.contiguous(), turned, table,
                turned.stride(0), turned.stride(1), table.stride(0),
                HALF=half, HALF_PADDED=next_power_of_2(half), INTERLEAVED=interleaved,
                num_warps=1,
            )  # fmt: skip
        if turned is not heads:
            heads.copy_(turned)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Writes key and value[T, KH, D] to the slots of caches[blocks, block, KH, D].

    slot_mapping is int64[T]; below 0 is padding.
    """
    from vllm_adapter_triton.kernels import layers as kernels

    if key.numel() == 0:
        return
    key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (key, value))
    head = key.shape[2]
    kernels.write_slots[key.shape[:2]](
        key, value, key_cache, value_cache, slot_mapping.contiguous(),
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        *key_cache.stride(), *value_cache.stride(),
        BLOCK=key_cache.shape[1], HEAD=head, HEAD_PADDED=next_power_of_2(head), num_warps=1,
    )  # fmt: skip


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """tensor: [..., width] -> [rows, width], dense in the last dimension; a copy if need be."""
    rows = tensor.reshape(-1, tensor.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _line(tensor: torch.Tensor) -> torch.Tensor:
    """tensor: [width], dense."""
    return tensor if tensor.stride(0) == 1 else tensor.contiguous()


def _row(width: int) -> dict[str, int]:
    """Size and warps of a program that holds a row."""
    size = next_power_of_2(width)
    return {"SIZE": size, "num_warps": min(16, max(1, size // 512))}
