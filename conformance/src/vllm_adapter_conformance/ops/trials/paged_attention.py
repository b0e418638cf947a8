"""paged_attention: causal attention of packed queries over a paged KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter.engine.ops.step import Step, make_step
from vllm_adapter_conformance.ops.draw import (
    CONTENTS,
    RandomTensors,
    laid,
    middle_turned,
    streams,
    torch_dtype,
)
from vllm_adapter_conformance.ops.lengths import paged_lengths
from vllm_adapter_conformance.ops.trial import Expected, Sample, ToDevice, Trial
from vllm_adapter_conformance.ops.trials._attend import Masking, Pair, packed
from vllm_adapter_conformance.ops.trials._values import apart_from_keys, score_values
from vllm_adapter_conformance.ops.trials.reshape_and_cache import laid_caches

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
    starts, contexts = query_start_loc.tolist(), seq_lens.tolist()
    block_size = key_cache.shape[1]

    def gathered(numbers: Sequence[int]) -> Pair:
        context = contexts[numbers[0]]
        length = starts[numbers[0] + 1] - starts[numbers[0]]
        # Blocks before every window are not looked at: they may be nobody's.
        first = max(0, context - length - window + 1) // block_size if window else 0
        blocks = block_table[list(numbers), first : -(-context // block_size)].long()
        seen = slice(None), slice(0, context - first * block_size)
        keys, values = (
            _blocks(cache, blocks).flatten(1, 2)[seen] for cache in (key_cache, value_cache)
        )
        return keys, values

    mask = Masking(True, window, soft_cap)
    return [packed(query, starts, contexts, gathered, scale, mask)]


def _blocks(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Some blocks of a cache in float64; torch gathers no float8."""
    if cache.dtype.itemsize == 1:
        return cache.view(torch.uint8)[blocks].view(cache.dtype).double()
    return cache[blocks].double()


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
            order = (RandomTensors(seed, name).permutation(sum(counts) + 1) + 1).tolist()
            return [[order.pop() for _ in range(count)] for count in counts], sum(counts) + 2

        def step(device: torch.device) -> Step:
            return make_step(queries, contexts, tables()[0], block, device)

        def build(to_device: ToDevice) -> tuple[object, ...]:
            table, blocks = tables()
            on_host = make_step(queries, contexts, table, block)
            draw = RandomTensors(seed, "paged_attention", name)
            query = draw.normal(on_host.positions.numel(), 2 * heads, size, dtype=dtype)
            caches = draw.normal(2, blocks, block, KV_HEADS, size, dtype=dtype)
            _poison_unseen(caches, table, queries, contexts, int(facts["window"]))
            caches = caches.to(stored)
            both = to_device(caches.transpose(0, 1).contiguous() if views else caches)
            keys, values = both.unbind(1 if views else 0)
            queries_here = (
                to_device(query)[:, :heads] if views else to_device(query[:, :heads].contiguous())
            )
            padded = on_host.block_table.masked_fill(on_host.block_table < 0, BEYOND)
            device_side = (
                to_device(padded),
                to_device(on_host.seq_lens),
                to_device(on_host.query_start_loc),
            )
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
    seen = _seen(caches.shape[1], block, table, queries, contexts, window) >= 0
    caches.flatten(1, 2)[:, ~seen] = torch.nan


def _seen(
    blocks: int,
    block: int,
    table: Sequence[Sequence[int]],
    queries: Sequence[int],
    contexts: Sequence[int],
    window: int,
) -> torch.Tensor:
    """float32[slots]: where in a sequence it lies, of [0, 1); -1 where no query sees it."""
    seen = torch.full((blocks * block,), -1.0)
    for mine, length, context in zip(table, queries, contexts, strict=True):
        first = max(0, context - length - window + 1) if window else 0
        if length:
            places = torch.arange(first, context)
            seen[torch.tensor(mine)[places // block] * block + places % block] = places / context
    return seen


def _draw(facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0) -> Sample:
    size, block, dtype = int(facts["head_size"]), int(facts["block_size"]), torch_dtype(facts)
    kv_heads, window = choice["kv_heads"], int(facts["window"])
    heads = kv_heads * int(facts["gqa_ratio"])
    stored = dtype if facts["kv_dtype"] == "auto" else getattr(torch, str(facts["kv_dtype"]))
    queries, longest = paged_lengths(choice, block, seed)
    contexts = _other_contexts(queries, longest, choice["phase"], block, seed, contents)

    def tables(device: torch.device | str = "cpu") -> Step:
        """The step with its table as wide as chosen, on the host or a device."""
        rows, pool = _tables(longest, block, choice, seed, contents)
        step = make_step(queries, contexts, rows, block)
        filler = pool - 1 if choice["filler"] == "free" else choice["filler"]
        # What lies behind a sequence's last block is nothing, though it was given blocks for more.
        used = torch.tensor([-(-context // block) for context in contexts], dtype=torch.int64)
        beyond = torch.arange(step.block_table.shape[1]) >= used[:, None]
        table = step.block_table.masked_fill(beyond, filler)
        if choice["table"] != "exact":
            more = torch.full((len(rows), 3), filler, dtype=torch.int32)
            table = torch.cat((table, more), 1)
        if device == "cpu":
            return replace(step, block_table=table)
        step = make_step(queries, contexts, rows, block, device)
        return replace(step, block_table=table.to(device))

    def build(to_device: ToDevice) -> tuple[object, ...]:
        on_host = tables()
        draw, _ = streams("paged_attention", seed, contents)
        rows, pool = _tables(longest, block, choice, seed, contents)
        query = draw.quick(sum(queries), heads, size, dtype=dtype)
        caches = torch.full((2, pool, block, kv_heads, size), torch.nan, dtype=stored)
        where = _seen(pool, block, rows, queries, contexts, window)
        seen = (where >= 0).nonzero()[:, 0]
        pair = draw.quick(2, len(seen), kv_heads, size, dtype=dtype)
        name = apart_from_keys(choice["values"], one_tensor=choice["cache"] == "one")
        query, keys, values = score_values(draw, name, query, pair[0], pair[1], where[seen])
        flat = caches.flatten(1, 2)
        flat[0, seen], flat[1, seen] = keys.to(stored), values.to(stored)
        key_cache, value_cache = laid_caches(to_device, caches, choice["cache"])
        table = on_host.block_table
        if choice["table"] in ("view", "offset"):
            table = laid(to_device, table, "wider" if choice["table"] == "view" else "offset")
        else:
            table = to_device(table)
        lengths = [
            laid(to_device, t, choice["ids"]) for t in (on_host.seq_lens, on_host.query_start_loc)
        ]
        options = (size ** choice["scale"], window, float(facts["soft_cap"]), 0)
        query = laid(to_device, query, choice["layout"])
        return query, key_cache, value_cache, table, *lengths, *options

    def step(device: torch.device) -> Step:
        return tables(device)

    return Sample(f"drawn: {dict(choice)}", build, step, max(size, *contexts, 1))


def _other_contexts(
    queries: Sequence[int],
    contexts: Sequence[int],
    phase: str,
    block: int,
    seed: str,
    contents: int,
) -> tuple[int, ...]:
    """Contexts of other contents: as a sequence has them at another step, in the same shapes."""
    if not CONTENTS[contents][1] or phase == "prefill":
        return tuple(contexts)
    random = Random(f"{seed}/contexts/{CONTENTS[contents][1]}")
    least = 2 if phase == "decode" else 0
    return tuple(
        max(q, min(c, least), c - random.randint(0, block))
        for q, c in zip(queries, contexts, strict=True)
    )


def _tables(
    contexts: Sequence[int], block: int, choice: Mapping[str, Any], seed: str, contents: int
) -> tuple[list[list[int]], int]:
    """Blocks of each sequence, in the order that was chosen, and how many there are in all.

    In a large pool they are the last ones; the very last is nobody's, and neither is the first.
    """
    _, draw = streams("tables", seed, contents)
    counts = [-(-context // block) for context in contexts]
    needed = sum(counts)
    pool = max(choice["pool"], needed + 2)
    places = torch.arange(needed)
    if choice["order"] != "down":  # the last is taken first
        places = places.flip(0) if choice["order"] == "up" else draw.permutation(needed)
    order = (places + pool - 1 - needed).tolist()
    rows = [[order.pop() for _ in range(count)] for count in counts]
    for number in range(1, len(rows) if choice["shared"] else 0):
        # A common prefix: whole blocks that both sequences have.
        common = min(contexts[number], contexts[number - 1]) // block
        rows[number][:common] = rows[number - 1][:common]
    return [middle_turned(torch.tensor(row), contents).tolist() for row in rows], pool


TRIAL: Final = Trial(
    reference=_reference,
    samples=_samples,
    draw=_draw,
    as_stored=frozenset({1, 2}),
    terms=lambda facts: max(int(facts["head_size"]), 2 * int(facts["block_size"]) + 3),
)
