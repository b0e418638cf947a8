"""The memory of a paged KV cache: one pair of tensors a layer, from the device's runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from vllm_adapter.engine.kv_cache.blocks import BlockPool, BlockSize, BlockTable
from vllm_adapter.engine.ops.step import Step, make_step
from vllm_adapter.engine.runtime import Allocation, RuntimeAdapter
from vllm_adapter.errors import AllocationFreed, OutOfMemory


class PagedKVCache:
    """Keys and values of many sequences, in blocks that any sequence may take.

    `layers[i]` is (keys, values) of layer i, each [blocks, block, kv_heads, head_size]. The
    cache grows by doubling, up to `max_blocks`: `layers` is then replaced by larger tensors that
    hold the same blocks, so a step must be made before its layers are read.
    """

    def __init__(
        self,
        runtime: RuntimeAdapter,
        device_id: int,
        size: BlockSize,
        dtype: torch.dtype,
        *,
        blocks: int,
        max_blocks: int | None = None,
    ) -> None:
        """Allocates `blocks` blocks.

        Raises:
            OutOfMemory: the device cannot give that much.
        """
        self._runtime = runtime
        self._device_id = device_id
        self.dtype: Final = dtype
        self.size = size
        self.max_blocks = max_blocks
        self.pool = BlockPool(blocks)
        self.layers, self._allocations = self._allocate(blocks)
        self.device: Final = self.layers[0][0].device

    def new_sequence(self) -> BlockTable:
        """A sequence without tokens."""
        return BlockTable(self.size.block_size, [])

    def advance(self, sequences: Sequence[BlockTable], new_tokens: Sequence[int]) -> Step:
        """Makes room for new tokens of each sequence, and the step that will write them.

        Raises:
            OutOfMemory: there are not enough blocks; no sequence was changed.
            AllocationFreed: the cache is closed.
        """
        self.make_room(sequences, new_tokens)
        return make_step(
            tuple(new_tokens),
            tuple(s.length for s in sequences),
            [s.blocks for s in sequences],
            self.size.block_size,
            self.device,
        )

    def make_room(
        self, sequences: Sequence[BlockTable], new_tokens: Sequence[int] | None = None
    ) -> None:
        """Appends so many tokens to each sequence, or one; errors as `advance` raises them."""
        if not self._allocations:
            raise AllocationFreed(
                "the KV cache was used after its close()", hint="make a new one, or close it last"
            )
        wanted = [1] * len(sequences) if new_tokens is None else new_tokens
        missing = [s.missing(n) for s, n in zip(sequences, wanted, strict=True)]
        self._reserve(sum(missing))
        for sequence, tokens, blocks in zip(sequences, wanted, missing, strict=True):
            sequence.append(tokens, self.pool.take(blocks))

    def release(self, sequences: Iterable[BlockTable]) -> None:
        """Gives back the blocks of sequences that are done; they are empty afterwards."""
        for sequence in sequences:
            blocks, sequence.blocks, sequence.length = sequence.blocks, [], 0
            self.pool.give_back(blocks)

    def close(self) -> None:
        """Gives the memory back to the device; then only `release` and `close` may be called."""
        allocations, self.layers, self._allocations = self._allocations, [], []
        for allocation in allocations:
            allocation.free()

    def _reserve(self, wanted: int) -> None:
        short = wanted - self.pool.free
        if short <= 0:
            return
        least = self.pool.count + short
        most = max(2 * self.pool.count, least)
        if self.max_blocks is not None:
            most = min(most, self.max_blocks)
        if most < least:
            self.pool.take(wanted)  # raises, with the figures
        try:
            self._grow(most)
        except OutOfMemory:
            if most == least:
                raise
            self._grow(least)  # the device cannot double it, and need not

    def _grow(self, count: int) -> None:
        layers, allocations = self._allocate(count)
        for old_pair, new_pair in zip(self.layers, layers, strict=True):
            for old, new in zip(old_pair, new_pair, strict=True):
                new[: self.pool.count].copy_(old)
        self._runtime.synchronize_stream(self._device_id)
        self.close()
        self.layers, self._allocations = layers, allocations
        self.pool.grow(count)

    def _allocate(
        self, blocks: int
    ) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[Allocation]]:
        size = self.size
        shape = (blocks, size.block_size, size.kv_heads, size.head_size)
        half = blocks * size.block_size * size.bytes_a_token_a_layer // 2
        allocations: list[Allocation] = []
        try:
            for _ in range(size.layers):
                allocations.append(self._runtime.allocate_memory(2 * half, self._device_id))
        except OutOfMemory:
            for allocation in allocations:
                allocation.free()
            raise
        return [
            (a.tensor(shape, self.dtype), a.tensor(shape, self.dtype, offset=half))
            for a in allocations
        ], allocations
