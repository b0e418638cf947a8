"""attention: packed sequences over themselves, without a cache."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter_conformance.ops.draw import RandomTensors, laid, torch_dtype
from vllm_adapter_conformance.ops.lengths import packed_lengths
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._attend import attend
from vllm_adapter_conformance.ops.trials._values import score_values

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
    outs = [torch.empty_like(query) for _ in range(3)]
    for start, stop in itertools.pairwise(query_start_loc.tolist()):
        rows = slice(start, stop)
        found = attend(
            query[rows],
            key[rows],
            value[rows],
            scale,
            causal=causal,
            window=window,
            soft_cap=soft_cap,
        )
        for out, part in zip(outs, found, strict=True):
            out[rows] = part
    return [Expected(*outs)]


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
        draw = RandomTensors(0, "attention", seed, contents)
        fused = draw.quick(sum(lengths), heads + 2 * kv_heads, size, dtype=dtype)
        query, key, value = torch.split(fused, [heads, kv_heads, kv_heads], dim=1)
        query, key = score_values(draw, choice["values"], query, key)
        if choice["layout"] == "fused":
            memory = to_device(torch.cat((query, key, value), 1))
            parts = torch.split(memory, [heads, kv_heads, kv_heads], dim=1)
        else:
            parts = tuple(
                laid(to_device, p.contiguous(), choice["layout"]) for p in (query, key, value)
            )
        starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        options = bool(facts["causal"]), int(facts["window"]), float(facts["soft_cap"])
        return *parts, to_device(starts), size ** choice["scale"], *options

    terms = max(size, *lengths, 1)
    return Sample(f"drawn: {dict(choice)}", build, terms=terms)


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    terms=lambda facts: max(int(facts["head_size"]), 33),
)
