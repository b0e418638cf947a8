"""Every operator but attention, with one fault each."""

from __future__ import annotations

import os
from typing import Any

import torch

from vllm_adapter import generic

_results: list[torch.Tensor] = []
_buffers: dict[Any, torch.Tensor] = {}


def epsilon_ten_times(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """1e-5 where 1e-6 was asked for."""
    return generic.rms_norm(x, weight, 10 * eps)


def tail_not_counted(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The mean leaves out what does not fill a vector of 16."""
    whole = x[..., : x.shape[-1] // 16 * 16].float()
    scale = torch.rsqrt(whole.square().mean(-1, keepdim=True) + eps)
    return (x.float() * scale * weight.float()).to(x.dtype)


def result_in_float32(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The right numbers in the wrong dtype."""
    return generic.rms_norm(x.float(), weight.float(), eps)


def refuses_odd_widths(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Declares any width, and raises for odd ones."""
    if x.shape[-1] % 2:
        raise RuntimeError("the width must be even")
    return generic.rms_norm(x, weight, eps)


def keeps_results(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A leak: nobody ever empties the list."""
    _results.append(generic.rms_norm(x, weight, eps))
    return _results[-1]


def one_buffer(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Gives the same memory to every caller of a shape."""
    key = (tuple(x.shape), x.dtype)
    buffer = _buffers.setdefault(key, torch.empty(x.shape, dtype=x.dtype))
    return buffer.copy_(generic.rms_norm(x, weight, eps))


def column_major_result(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The right numbers with other strides than the fake gives."""
    result = generic.rms_norm(x, weight, eps)
    return result.transpose(0, -1).contiguous().transpose(0, -1)


def halves_other_dtypes(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Reads any dtype but float32 as if its scale were another."""
    result = generic.rms_norm(x, weight, eps)
    return result if x.dtype == torch.float32 else result * 0.5


def other_dtypes_elsewhere(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Answers what it does not serve on another device."""
    result = generic.rms_norm(x, weight, eps)
    return result if x.dtype == torch.float32 else result.to("meta")


def dies_of_other_dtypes(x: torch.Tensor) -> torch.Tensor:
    """Takes the process along."""
    if x.dtype != torch.float32:
        os.abort()
    return generic.silu_and_mul(x)


def writes_residual(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds in place, and gives a copy."""
    residual.add_(x)
    return generic.rms_norm(residual, weight, eps), residual.clone()


def noise_within_budget(x: torch.Tensor) -> torch.Tensor:
    """Another last bit at each call, as atomic additions give."""
    result = generic.silu_and_mul(x)
    return result * (1 + torch.finfo(x.dtype).eps * torch.randint(0, 2, result.shape)).to(x.dtype)


def looks_at_values(x: torch.Tensor) -> torch.Tensor:
    """Is declared plain torch, and asks the device for a number: a graph break."""
    if float(x.abs().max()) > 1e30:
        raise RuntimeError("too large")
    return generic.silu_and_mul(x)


def adds_in_dtype(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """Accumulates in the dtype, and not in float32."""
    total = torch.zeros(*x.shape[:-1], out_features, dtype=x.dtype) if bias is None else bias
    for column in range(x.shape[-1]):
        total = total + x[..., column, None] * weight[:, column]
    return total


def bias_forgotten(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """Adds no bias."""
    return generic.linear(x, weight, None, out_features)


def neighbours_rotated(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """The style of GPT-J where that of NeoX was asked for."""
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    for heads in (query, key):
        first, second = heads[..., 0::2].clone(), heads[..., 1::2].clone()
        heads[..., 0::2] = first * cos - second * sin
        heads[..., 1::2] = second * cos + first * sin


def no_copy_back(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """Rotates contiguous copies of what is not contiguous."""
    generic.rotary_embedding(
        positions, query.contiguous(), key.contiguous(), cos_sin_cache, interleaved
    )


def keys_and_values_swapped(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Keys where values belong, and the reverse."""
    generic.reshape_and_cache(value, key, key_cache, value_cache, slot_mapping)


def padding_to_slot_zero(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Clamps padding, which then overwrites the token in slot 0."""
    slots = slot_mapping.clamp(min=0)
    generic.reshape_and_cache(key, value, key_cache, value_cache, slots)


def blocks_of_sixteen(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Takes every block to hold 16 tokens."""
    for new, cache in ((key, key_cache), (value, value_cache)):
        for row, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                place = slot % 16 % cache.shape[1]
                cache[slot // 16 % len(cache), place] = new[row].to(cache.dtype)
