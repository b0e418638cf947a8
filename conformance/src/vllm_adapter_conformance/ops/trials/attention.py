"""attention: packed sequences over themselves, without a cache."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import (
    RandomTensors,
    laid,
    laid_parts,
    streams,
    torch_dtype,
)
from vllm_adapter_conformance.ops.lengths import packed_lengths
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._attend import Masking, Pair, packed
from vllm_adapter_conformance.ops.trials._values import apart_from_keys, score_values

KV_HEADS: Final = 2


def _reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> Sequence[Expected]:
    starts = query_start_loc.tolist()
    lengths = [stop - start for start, stop in itertools.pairwise(starts)]

    def gathered(numbers: Sequence[int]) -> Pair:
        rows = [slice(starts[n], starts[n + 1]) for n in numbers]
        return torch.stack([key[r] for r in rows]), torch.stack([value[r] for r in rows])

    mask = Masking(causal, window, soft_cap)
    return [packed(query, starts, lengths, gathered, scale, mask)]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    size, dtype = int(facts["head_size"]), torch_dtype(facts)
    heads = KV_HEADS * int(facts["gqa_ratio"])

    def sample(name: str, *lengths: int, views: bool = False) -> Sample:
        def build(to_device: ToDevice) -> tuple[object, ...]:
            draw = RandomTensors(seed, "attention", name)
            fused = draw.normal(sum(lengths), heads + 2 * KV_HEADS, size, dtype=dtype)
            split = [heads, KV_HEADS, KV_HEADS]
            if views:
                parts = torch.split(to_device(fused), split, dim=1)
            else:
                parts = tuple(to_device(p.contiguous()) for p in torch.split(fused, split, dim=1))
            starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
            options = bool(facts["causal"]), int(facts["window"]), float(facts["soft_cap"])
            return *parts, to_device(starts), size**-0.5, *options

        return Sample(name, build)

    return [
        sample("sequences", 5, 1, 33),
        sample("one token", 1),
        sample("an empty sequence between", 3, 0, 4),
        sample("no sequence"),
        sample("views of a fused qkv", 17, 2, views=True),
    ]


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    size, dtype, kv_heads = int(facts["head_size"]), torch_dtype(facts), choice["kv_heads"]
    heads = kv_heads * int(facts["gqa_ratio"])
    lengths = packed_lengths(choice, seed)

    def build(to_device: ToDevice) -> tuple[object, ...]:
        draw, _ = streams("attention", seed, contents)
        tokens = sum(lengths)
        fused = draw.quick(tokens, heads + 2 * kv_heads, size, dtype=dtype)
        query, key, value = torch.split(fused, [heads, kv_heads, kv_heads], dim=1)
        places = torch.arange(tokens) / max(1, tokens)
        name = apart_from_keys(choice["values"], one_tensor=choice["added"] == "the keys")
        made = score_values(draw, name, query, key, value, places)
        layouts = choice["layout"], choice["keys"], choice["added"]
        parts = laid_parts(to_device, made, layouts)
        starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        options = bool(facts["causal"]), int(facts["window"]), float(facts["soft_cap"])
        return *parts, laid(to_device, starts, choice["ids"]), size ** choice["scale"], *options

    terms = max(size, *lengths, 1)
    return Sample(f"drawn: {dict(choice)}", build, terms=terms)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    terms=lambda facts: max(int(facts["head_size"]), 33),
)
