"""Everything but attention: linear, norms, activations, embeddings, rotation, the KV write."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vllm_adapter.engine.ops.generic.stored import as_bytes, stored_rows


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """x[..., in], weight[out, in], bias[out] -> [..., out]."""
    return F.linear(x, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[..., hidden], weight[hidden] -> [..., hidden]; computed in float32."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), both [..., hidden]."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x[..., 2 d] -> silu(x[..., :d]) * x[..., d:]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """x[..., hidden], weight[hidden], bias[hidden] -> [..., hidden]; computed in float32."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def gelu(x: torch.Tensor, tanh: bool) -> torch.Tensor:
    """x: [..., width] -> [..., width], x * Phi(x); with `tanh` by the approximation."""
    return F.gelu(x, approximate="tanh" if tanh else "none")


def gelu_and_mul(x: torch.Tensor, tanh: bool) -> torch.Tensor:
    """x[..., 2 d] -> gelu(x[..., :d]) * x[..., d:]."""
    gate, up = x.chunk(2, dim=-1)
    return gelu(gate, tanh) * up


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """ids int64[...], weight[rows, hidden] -> [..., hidden]."""
    return F.embedding(ids, weight)


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
) -> None:
    """Rotates query[T, H, D] and key[T, KH, D] in place by positions int64[T].

    cos_sin_cache[positions, R] holds cos, then sin; only the first R elements of a head turn.
    Pairs are halves of these (NeoX), or neighbours if `interleaved` (GPT-J).
    """
    width = cos_sin_cache.shape[-1]
    cos, sin = cos_sin_cache[positions].float().unsqueeze(1).chunk(2, dim=-1)
    for heads in (query, key):
        turning = heads[..., :width]
        wide = turning.float()
        if interleaved:
            first, second = wide[..., 0::2], wide[..., 1::2]
        else:
            first, second = wide.chunk(2, dim=-1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
        turning.copy_(joined)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Writes key and value[T, KH, D] to the slots of caches[blocks, block, KH, D].

    A slot below 0 is padding. Shapes do not depend on how many there are, so that this traces:
    a padding row repeats the first real row, which writes the same bytes twice; with no real
    row, slot 0 is written with what it holds.
    """
    if slot_mapping.numel() == 0:
        return
    real = slot_mapping >= 0
    first = real.long().argmax()
    row = torch.where(real, torch.arange(real.numel(), device=real.device), first)
    slot = slot_mapping[row].clamp(min=0)
    block, place = slot // key_cache.shape[1], slot % key_cache.shape[1]
    any_real = real.any()
    for new, cache in ((key, key_cache), (value, value_cache)):
        held = as_bytes(cache)
        rows = torch.where(any_real, stored_rows(new[row], cache.dtype), held[block, place])
        held[block, place] = rows
