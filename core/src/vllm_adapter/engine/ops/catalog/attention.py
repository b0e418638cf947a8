"""attention: packed sequences over themselves, without a cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.catalog._attend import attend
from vllm_adapter.engine.ops.draw import Draw, torch_dtype
from vllm_adapter.engine.ops.spec import Expected, Facts, OpSpec, Put, Sample, dtype_name
from vllm_adapter.operators import OPERATORS, FactValue

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


def _facts_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
) -> dict[str, FactValue]:
    return {
        "dtype": dtype_name(query),
        "head_size": query.shape[2],
        "gqa_ratio": query.shape[1] // key.shape[1],
        "causal": causal,
        "window": window,
        "soft_cap": soft_cap,
    }


def _key_of(query: torch.Tensor, key: torch.Tensor, *rest: Any) -> tuple[object, ...]:
    *_, causal, window, soft_cap = rest
    shape = query.shape[1:], key.shape[1]
    return query.dtype, query.device, *shape, causal, window, soft_cap


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    size, dtype = int(facts["head_size"]), torch_dtype(facts)
    heads = KV_HEADS * int(facts["gqa_ratio"])

    def sample(name: str, *lengths: int, views: bool = False) -> Sample:
        def build(put: Put) -> tuple[object, ...]:
            draw = Draw(seed, "attention", name)
            fused = draw.normal(sum(lengths), heads + 2 * KV_HEADS, size, dtype=dtype)
            split = [heads, KV_HEADS, KV_HEADS]
            if views:
                parts = torch.split(put(fused), split, dim=1)
            else:
                parts = tuple(put(p.contiguous()) for p in torch.split(fused, split, dim=1))
            starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
            options = bool(facts["causal"]), int(facts["window"]), float(facts["soft_cap"])
            return *parts, put(starts), size**-0.5, *options

        return Sample(name, build)

    return [
        sample("sequences", 5, 1, 33),
        sample("one token", 1),
        sample("an empty sequence between", 3, 0, 4),
        sample("no sequence"),
        sample("views of a fused qkv", 17, 2, views=True),
    ]


SPEC: Final = OpSpec(
    operator=OPERATORS["attention"],
    schema="(Tensor query, Tensor key, Tensor value, Tensor query_start_loc, float scale, "
    "bool causal, int window, float soft_cap) -> Tensor",
    fake=lambda query, *rest: query.new_empty(query.shape),
    reference=_reference,
    generic=generic.attention,
    facts_of=_facts_of,
    key_of=_key_of,
    samples=_samples,
    terms=lambda facts: max(int(facts["head_size"]), 33),
)
