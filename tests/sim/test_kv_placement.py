"""Placement of a KV cache over two simulated devices: the library counts what crosses."""

from __future__ import annotations

import pytest

from vllm_adapter.engine.kv_cache.blocks import BlockPool, BlockSize, BlockTable
from vllm_adapter.engine.kv_cache.placement import KvPlacement, by_domain, striped

pytestmark = pytest.mark.sim

SIZE = BlockSize(layers=6, kv_heads=2, head_size=16, element_bytes=2, block_size=8)
BLOCK = SIZE.block_size * SIZE.bytes_a_token_a_layer
ROW = 64 * 2
"""Bytes of one token's activations, which pass from one domain's layers to the next."""


def crossed(runtime, placement: KvPlacement, sequences: list[BlockTable], steps: int) -> int:
    """Bytes that the library counts on its links while every sequence decodes some steps."""
    devices = sorted({device for home in placement.homes for device in home})
    count = 1 + max(block for sequence in sequences for block in sequence.blocks)
    caches = {
        (layer, device): runtime.allocate_memory(count * BLOCK, device)
        for layer, home in enumerate(placement.homes)
        for device in home
    }
    scratch = {device: runtime.allocate_memory(BLOCK, device) for device in devices}
    before = sum(runtime.device_memory(device).link_bytes for device in devices)
    for _ in range(steps):
        for layer, here in enumerate(placement.compute):
            if layer and placement.compute[layer - 1] != here:
                for _ in sequences:
                    origin = scratch[placement.compute[layer - 1]]
                    runtime.copy_on_device(scratch[here], origin, ROW)
            for sequence in sequences:
                for block in placement.crossing(layer, sequence.blocks):
                    origin = caches[layer, placement.device_of(layer, block)]
                    runtime.copy_on_device(
                        scratch[here], origin, BLOCK, source_offset=block * BLOCK
                    )
    after = sum(runtime.device_memory(device).link_bytes for device in devices)
    for allocation in (*caches.values(), *scratch.values()):
        allocation.free()
    return after - before


def test_a_layer_s_blocks_stay_where_it_is_computed(runtime):
    pool, sequences = BlockPool(24), []
    for tokens in (40, 17, 64, 8):
        table = BlockTable(SIZE.block_size, [])
        table.append(tokens, pool.take(table.missing(tokens)))
        sequences.append(table)
    blocks = sum(len(one.blocks) for one in sequences)
    odd = sum(block % 2 for one in sequences for block in one.blocks)
    domains, steps = [(0,), (1,)], 3
    passed_on = steps * len(sequences) * ROW
    ours = crossed(runtime, by_domain(SIZE.layers, domains), sequences, steps)
    theirs = crossed(runtime, striped(SIZE.layers, domains), sequences, steps)
    assert ours == passed_on
    # three layers are computed on each device, and read the other's blocks
    assert theirs == passed_on + steps * BLOCK * (3 * odd + 3 * (blocks - odd))
    assert theirs > 40 * ours
