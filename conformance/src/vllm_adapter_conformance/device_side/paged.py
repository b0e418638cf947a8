"""Sequences in a paged KV cache on the device: written by one operator, read by the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vllm_adapter.engine.kv_cache import BlockSize, PagedKVCache

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.kv_cache import BlockTable

Facts = Mapping[str, Any]


def rounds(
    device: HeldDevice,
    attend: Facts,
    write: Facts,
    kv_heads: int,
    blocks: int,
    steps: Sequence[Mapping[str, Any]],
) -> list[torch.Tensor]:
    """The result of attention in each step [tokens, heads, size].

    A step has `tokens` (sequence -> how many new ones), `query` [tokens, heads, size], `key` and
    `value` [tokens, kv_heads, size], and `ends`: sequences whose blocks are free before it.
    """
    dtype = getattr(torch, str(attend["dtype"]))
    size = BlockSize(
        layers=1,
        kv_heads=kv_heads,
        head_size=int(attend["head_size"]),
        element_bytes=dtype.itemsize,
        block_size=int(attend["block_size"]),
    )
    # Just enough blocks: what a finished sequence held is taken again at once.
    cache = PagedKVCache(
        device.runtime, device.index, size, dtype, blocks=blocks, max_blocks=blocks
    )
    try:
        return _rounds(device, cache, attend, write, steps)
    finally:
        cache.close()


def _rounds(
    device: HeldDevice,
    cache: PagedKVCache,
    attend: Facts,
    write: Facts,
    steps: Sequence[Mapping[str, Any]],
) -> list[torch.Tensor]:
    for tensor in cache.layers[0]:
        tensor.fill_(torch.nan)
    writer = device.bind("reshape_and_cache", write)
    reader = device.bind("paged_attention", attend)
    tables: dict[int, BlockTable] = {}
    found = []
    for given in steps:
        cache.release([tables.pop(number) for number in given["ends"]])
        for number in given["tokens"]:
            if number not in tables:
                tables[number] = cache.new_sequence()
        step = cache.advance(
            [tables[number] for number in given["tokens"]], list(given["tokens"].values())
        )
        keys, values = cache.layers[0]
        key, value = (device.to_device(given[name]) for name in ("key", "value"))
        reader.plan(step)
        writer.run(key, value, keys, values, step.slot_mapping)
        result = reader.run(
            device.to_device(given["query"]),
            keys,
            values,
            step.block_table,
            step.seq_lens,
            step.query_start_loc,
            cache.size.head_size**-0.5,
            int(attend["window"]),
            float(attend["soft_cap"]),
            reader.handle,
        )
        found.append(result.cpu())
    return found
