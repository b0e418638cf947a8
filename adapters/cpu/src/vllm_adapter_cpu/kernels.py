"""Kernels that do better on a host than core's portable ones: reading a tensor costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from vllm_adapter import TuneCase, generic, tuned

if TYPE_CHECKING:
    from vllm_adapter import Capability


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
"""Rows up to which products straight from int8 beat those from the weight, unpacked each time.

Seen on an AMD EPYC of family 25 (no AVX-512), 576 x 3072 in bfloat16; `vllm-adapter tune cpu`
finds what holds elsewhere.
"""
TUNED_WIDTHS = ((512, 512), (512, 2048), (1024, 1024), (2048, 512), (2048, 2048))
"""Inputs and outputs of the products that are measured."""
TUNED_ROWS = (1, 4, 16, 64)


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
    if not rows or torch.compiler.is_compiling() or not _is_packed(x, rows, out_features):
        return generic.quantized_linear(x, weight, scale, zero, bias, out_features, scheme)
    flat = x.reshape(rows, -1).contiguous()
    product = torch._weight_int8pack_mm(flat, weight, scale.squeeze(1).to(x.dtype))
    product = product.view(*x.shape[:-1], out_features)
    return product if bias is None else product + bias


def _is_packed(x: torch.Tensor, rows: int, out_features: int) -> bool:
    sizes = {"in_features": x.shape[-1], "out_features": out_features, "rows": rows}
    return bool(
        tuned("quantized_linear", x.device, x.dtype, sizes).get("packed", rows <= PACKED_ROWS)
    )


def tune_quantized_linear(
    device: torch.device, dtype: torch.dtype, capability: Capability
) -> Iterator[TuneCase]:
    """Products of some widths and rows, each by either way."""
    for width, out in TUNED_WIDTHS:
        weight = torch.randint(-127, 128, (out, width), dtype=torch.int8)
        scale = torch.full((out, 1), width**-0.5 / 64)
        for rows in TUNED_ROWS:
            x = torch.randn(rows, width).to(dtype)
            yield TuneCase(
                operator="quantized_linear",
                dtype=dtype,
                sizes={"in_features": width, "out_features": out, "rows": rows},
                choices=[{"packed": True}, {"packed": False}],
                run=partial(quantized_linear_int8, x, weight, scale, None, None, out, "int8"),
            )
