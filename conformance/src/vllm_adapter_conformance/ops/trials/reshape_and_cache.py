"""reshape_and_cache: writes keys and values into the slots of a paged KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import (
    RandomTensors,
    in_order,
    laid,
    laid_parts,
    middle_turned,
    streams,
    torch_dtype,
)
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._values import copied_values

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
            for new, cache in ((key, key_cache), (value, value_cache)):
                cache[slot // block_size, slot % block_size] = new[row].to(cache.dtype)
    # A copy is exact: with magnitude zero the tolerance is zero too.
    held = (cache.double() for cache in (key_cache, value_cache))
    return [Expected(cache, torch.zeros((), dtype=cache.dtype).expand_as(cache)) for cache in held]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    size, block, dtype = int(facts["head_size"]), int(facts["block_size"]), torch_dtype(facts)
    stored = dtype if facts["kv_dtype"] == "auto" else getattr(torch, str(facts["kv_dtype"]))

    def sample(
        name: str, tokens: int, padding: Sequence[int] = (), *, views: bool = False
    ) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "reshape_and_cache", name)
            slots = draw.permutation(BLOCKS * block)[:tokens]
            if tokens > 1:
                slots[slots == 0] = slots[1]
                slots[1] = 0  # padding that clamps to slot 0 would overwrite a real token here
            slots[list(padding)] = -1
            qkv = draw.normal(tokens, 3 * KV_HEADS, size, dtype=dtype)
            caches = draw.normal(2, BLOCKS, block, KV_HEADS, size, dtype=dtype).to(stored)
            if views:
                fused, both = to_device(qkv), to_device(caches.transpose(0, 1).contiguous())
                key, value = fused[:, KV_HEADS : 2 * KV_HEADS], fused[:, 2 * KV_HEADS :]
                return key, value, both[:, 0], both[:, 1], to_device(slots)
            key, value = qkv[:, :KV_HEADS].contiguous(), qkv[:, KV_HEADS : 2 * KV_HEADS]
            return (
                to_device(key),
                to_device(value.contiguous()),
                to_device(caches[0]),
                to_device(caches[1]),
                to_device(slots),
            )

        return Sample(name, build)

    return [
        sample("tokens", 9),
        sample("one token", 1),
        sample("no token", 0),
        sample("padding", 9, (0, 4, 8)),
        sample("nothing but padding", 3, (0, 1, 2)),
        sample("views of a fused qkv and of one cache", 7, (3,), views=True),
    ]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    size, block, dtype = int(facts["head_size"]), int(facts["block_size"]), torch_dtype(facts)
    stored = dtype if facts["kv_dtype"] == "auto" else getattr(torch, str(facts["kv_dtype"]))
    heads, blocks = choice["kv_heads"], choice["pool"]
    tokens = min(choice["tokens"], blocks * block)
    # What float8 makes of infinity is a choice of whoever rounds.
    values = choice["values"] if stored == dtype else "normal"

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, places = streams("reshape_and_cache", seed, contents)
        slots = _slots(places, tokens, blocks * block, choice["order"])
        _pad(places, slots, choice["padding"])
        slots = middle_turned(slots, contents)
        qkv = copied_values(draw, values, (tokens, 3 * heads, size), dtype)
        qkv[slots < 0] = torch.nan
        held = torch.arange(2 * blocks * block * heads * size, dtype=torch.float32) % 509 - 254
        caches = held.view(2, blocks, block, heads, size).to(stored)
        layouts = choice["layout"], choice["layout"], choice["added"]
        _, key, value = laid_parts(to_device, torch.split(qkv, heads, dim=1), layouts)
        pair = laid_caches(to_device, caches, choice["cache"])
        return key, value, *pair, laid(to_device, slots, choice["ids"])

    return Sample(f"drawn: {dict(choice)}", build)


def laid_caches(
    to_device: ToDevice, caches: torch.Tensor, how: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """caches[2, blocks, ...] as keys and values, which may be views of one tensor."""
    if how == "one":
        only = to_device(caches[0])
        return only, only
    if how in ("apart", "offset"):
        plain = "plain" if how == "apart" else how
        return laid(to_device, caches[0], plain), laid(to_device, caches[1], plain)
    if "heads first" in how:
        # [blocks, kv_heads, block_size, head_size] in memory, of keys, of values or of both.
        turned = [how != "values heads first", how != "keys heads first"]
        pair = [
            to_device(cache.transpose(1, 2).contiguous()).transpose(1, 2)
            if turn
            else to_device(cache)
            for cache, turn in zip(caches, turned, strict=True)
        ]
        return pair[0], pair[1]
    if how == "one behind the other":
        both = to_device(caches)
        return both[0], both[1]
    both = to_device(caches.transpose(0, 1).contiguous())
    return both[:, 0], both[:, 1]


def _slots(draw: RandomTensors, tokens: int, slots: int, order: str) -> torch.Tensor:
    """Slots for the tokens; of mixed ones, the first and the last of the cache are two."""
    if order != "mixed":
        return in_order(draw, tokens, slots, order)
    named = torch.tensor([slots - 1, 0])[:tokens]
    drawn = draw.integers(0, slots, 4 * tokens)
    found = torch.cat((named, drawn, torch.arange(slots)[: 2 * tokens])).tolist()
    chosen = torch.tensor(list(dict.fromkeys(found))[:tokens], dtype=torch.int64)
    return chosen[draw.permutation(tokens)]


def _pad(draw: RandomTensors, slots: torch.Tensor, padding: int | str) -> None:
    """slots[tokens]: some of them, or all, become padding."""
    tokens = len(slots)
    if padding == "all":
        slots[:] = -1
    elif padding != "none" and tokens:
        slots[draw.integers(0, 3, tokens) == 0] = int(padding)
        slots[int(draw.integers(0, tokens, 1))] = int(padding)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    as_stored=frozenset({2, 3}),
    terms=lambda facts: 1,
)
