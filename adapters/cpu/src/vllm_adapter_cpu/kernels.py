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
    if torch.compiler.is_compiling():
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
