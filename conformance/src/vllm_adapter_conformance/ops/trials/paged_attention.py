"""paged_attention: causal attention of packed queries over a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter.engine.ops.step import Step, make_step
from vllm_adapter_conformance.ops.draw import Draw, torch_dtype
from vllm_adapter_conformance.ops.trial import Expected, Put, Sample, Trial
from vllm_adapter_conformance.ops.trials._attend import attend

KV_HEADS: Final = 2
BEYOND: Final = 2**30
"""Written into the block table past a sequence's last block: whoever reads it is found out."""


def _reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    plan: int,
) -> Sequence[Expected]:
    outs = [torch.empty_like(query) for _ in range(3)]
    block_size = key_cache.shape[1]
    for i, context in enumerate(seq_lens.tolist()):
        rows = slice(*query_start_loc[i : i + 2].tolist())
        blocks = block_table[i, : -(-context // block_size)].long()
        keys, values = (
            cache[blocks].flatten(0, 1)[:context] for cache in (key_cache, value_cache)
        )
        found = attend(
            query[rows], keys, values, scale, causal=True, window=window, soft_cap=soft_cap
        )
        for out, part in zip(outs, found, strict=True):
            out[rows] = part
    return [Expected(*outs)]


def _samples(facts: Facts, seed: int) -> Sequence[Sample]:
    size, block, dtype = int(facts["head_size"]), int(facts["block_size"]), torch_dtype(facts)
    heads = KV_HEADS * int(facts["gqa_ratio"])
    stored = dtype if facts["kv_dtype"] == "auto" else getattr(torch, str(facts["kv_dtype"]))

    def sample(
        name: str, queries: tuple[int, ...], contexts: tuple[int, ...], *, views: bool = False
    ) -> Sample:
        def tables() -> tuple[list[list[int]], int]:
            """Blocks in random order, with one between that nobody uses."""
            counts = [-(-context // block) for context in contexts]
            order = (Draw(seed, name).permutation(sum(counts) + 1) + 1).tolist()
            return [[order.pop() for _ in range(count)] for count in counts], sum(counts) + 2

        def step(device: torch.device) -> Step:
            return make_step(queries, contexts, tables()[0], block, device)

        def build(put: Put) -> tuple[object, ...]:
            table, blocks = tables()
            on_host = make_step(queries, contexts, table, block)
            draw = Draw(seed, "paged_attention", name)
            query = draw.normal(on_host.positions.numel(), 2 * heads, size, dtype=dtype)
            caches = draw.normal(2, blocks, block, KV_HEADS, size, dtype=dtype)
            _poison_unseen(caches, table, queries, contexts, int(facts["window"]))
            caches = caches.to(stored)
            both = put(caches.transpose(0, 1).contiguous() if views else caches)
            keys, values = both.unbind(1 if views else 0)
            queries_here = put(query)[:, :heads] if views else put(query[:, :heads].contiguous())
            padded = on_host.block_table.masked_fill(on_host.block_table < 0, BEYOND)
            device_side = (put(padded), put(on_host.seq_lens), put(on_host.query_start_loc))
            options = (size**-0.5, int(facts["window"]), float(facts["soft_cap"]), 0)
            return queries_here, keys, values, *device_side, *options

        return Sample(name, build, step)

    long = 2 * block + 3
    return [
        sample("decode", (1, 1, 1, 1), (1, block, block + 1, long)),
        sample("prefill", (block, block + 1, 1, 5), (block, block + 1, 1, 5)),
        sample("mixed", (1, 5, block + 1, 2), (block + 1, block + 5, block + 1, long)),
        sample("a sequence with nothing new", (3, 0, 1), (3, block, long)),
        sample("one token", (1,), (1,)),
        sample("no sequence", (), ()),
        sample("views of a fused qkv and of one cache", (1, 6), (long, block + 6), views=True),
    ]


def _poison_unseen(
    caches: torch.Tensor,
    table: Sequence[Sequence[int]],
    queries: Sequence[int],
    contexts: Sequence[int],
    window: int,
) -> None:
    """NaN in every slot that no query sees: one that is read shows in the result.

    caches: [2, blocks, block_size, kv_heads, head_size]; lengths and window in tokens.
    """
    block = caches.shape[2]
    seen = torch.zeros(caches.shape[1] * block, dtype=torch.bool)
    for blocks, length, context in zip(table, queries, contexts, strict=True):
        first = max(0, context - length - window + 1) if window else 0
        for place in range(first, context) if length else ():
            seen[blocks[place // block] * block + place % block] = True
    caches.flatten(1, 2)[:, ~seen] = torch.nan


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    terms=lambda facts: max(int(facts["head_size"]), 2 * int(facts["block_size"]) + 3),
)
