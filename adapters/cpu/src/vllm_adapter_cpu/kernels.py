"""Kernels that do better on a host than core's portable ones: reading a tensor costs nothing."""

from __future__ import annotations

import torch

from vllm_adapter import generic


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Writes key and value[T, KH, D] to the slots of caches[blocks, block, KH, D].

    slot_mapping is int64[T]; below 0 is padding. While tracing it is core's form, whose shapes do
    not depend on the padding and which a compiler fuses.
    """
    if torch.compiler.is_compiling() or key_cache.dtype != key.dtype:
        generic.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)
        return
    if slot_mapping.numel() == 0:
        return
    if int(slot_mapping.min()) < 0:
        real = slot_mapping >= 0
        key, value, slot_mapping = key[real], value[real], slot_mapping[real]
    block_size = key_cache.shape[1]
    block = torch.div(slot_mapping, block_size, rounding_mode="floor")
    place = slot_mapping % block_size
    key_cache[block, place] = key
    value_cache[block, place] = value


PACKED_ROWS = 16
"""Rows up to which products straight from int8 beat those from the weight, unpacked at each call.

Measured by `vllm-adapter tune` on an AMD EPYC of family 25 (no AVX-512), 576 x 3072, bfloat16.
"""


def quantized_linear_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_features: int,
    scheme: str,
) -> torch.Tensor:
    """x[..., in], weight int8[out, in], scale float32[out, 1] -> [..., out].

    torch's own product reads widths that are no multiples of 16 past their end: the descriptor's
    entry bounds them.
    """
    rows = x.numel() // x.shape[-1]
    if not 0 < rows <= PACKED_ROWS or torch.compiler.is_compiling():
        return generic.quantized_linear(x, weight, scale, zero, bias, out_features, scheme)
    flat = x.reshape(rows, -1).contiguous()
    product = torch._weight_int8pack_mm(flat, weight, scale.squeeze(1).to(x.dtype))
    product = product.view(*x.shape[:-1], out_features)
    return product if bias is None else product + bias
