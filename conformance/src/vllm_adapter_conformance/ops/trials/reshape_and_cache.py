"""reshape_and_cache: writes keys and values into the slots of a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import Draw, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Put, Sample, Trial

BLOCKS: Final = 4
KV_HEADS: Final = 2


def _reference(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> Sequence[Expected]:
    block_size = key_cache.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            key_cache[slot // block_size, slot % block_size] = key[row]
            value_cache[slot // block_size, slot % block_size] = value[row]
    # A copy is exact: with magnitude zero the tolerance is zero too.
    return [Expected(cache, torch.zeros_like(cache)) for cache in (key_cache, value_cache)]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    size, block, dtype = int(facts["head_size"]), int(facts["block_size"]), torch_dtype(facts)
    stored = dtype if facts["kv_dtype"] == "auto" else getattr(torch, str(facts["kv_dtype"]))

    def sample(
        name: str, tokens: int, padding: Sequence[int] = (), *, views: bool = False
    ) -> Sample:
        def build(put: Put) -> tuple[object, ...]:
            draw = Draw(seed, "reshape_and_cache", name)
            slots = draw.permutation(BLOCKS * block)[:tokens]
            if tokens > 1:
                slots[slots == 0] = slots[1]
                slots[1] = 0  # padding that clamps to slot 0 would overwrite a real token here
            slots[list(padding)] = -1
            qkv = draw.normal(tokens, 3 * KV_HEADS, size, dtype=dtype)
            caches = draw.normal(2, BLOCKS, block, KV_HEADS, size, dtype=dtype).to(stored)
            if views:
                fused, both = put(qkv), put(caches.transpose(0, 1).contiguous())
                key, value = fused[:, KV_HEADS : 2 * KV_HEADS], fused[:, 2 * KV_HEADS :]
                return key, value, both[:, 0], both[:, 1], put(slots)
            key, value = qkv[:, :KV_HEADS].contiguous(), qkv[:, KV_HEADS : 2 * KV_HEADS]
            return put(key), put(value.contiguous()), put(caches[0]), put(caches[1]), put(slots)

        return Sample(name, build)

    return [
        sample("tokens", 9),
        sample("one token", 1),
        sample("no token", 0),
        sample("padding", 9, (0, 4, 8)),
        sample("nothing but padding", 3, (0, 1, 2)),
        sample("views of a fused qkv and of one cache", 7, (3,), views=True),
    ]


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    terms=lambda facts: 1,
)
