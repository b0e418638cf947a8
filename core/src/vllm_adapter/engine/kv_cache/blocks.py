"""KV blocks: how big they are, which are free, which belong to a sequence. No device memory.

The arithmetic, for 32 layers, 8 KV heads, heads of 128 and float16:

>>> size = BlockSize(layers=32, kv_heads=8, head_size=128, element_bytes=2, block_size=16)
>>> size.bytes_a_token_a_layer, size.bytes_a_token, size.bytes_a_block
(4096, 131072, 2097152)

that is 4 KiB, 128 KiB and 2 MiB: keys and values, 2 x 8 x 128 x 2 bytes a token and layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_adapter.errors import OutOfMemory


@dataclass(frozen=True, slots=True)
class BlockSize:
    """A model's KV cache, in bytes. `element_bytes` is 2 for float16, `block_size` in tokens."""

    layers: int
    kv_heads: int
    head_size: int
    element_bytes: int
    block_size: int

    @property
    def bytes_a_token_a_layer(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_size * self.element_bytes

    @property
    def bytes_a_token(self) -> int:
        """Keys and values of one token in all layers."""
        return self.layers * self.bytes_a_token_a_layer

    @property
    def bytes_a_block(self) -> int:
        """Keys and values of one block in all layers."""
        return self.block_size * self.bytes_a_token

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` of one sequence."""
        return -(-tokens // self.block_size)


class BlockPool:
    """The free list. Blocks are numbers below `count`; one taken is nobody else's."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    def take(self, wanted: int) -> list[int]:
        """`wanted` blocks, all or none.

        Raises:
            OutOfMemory: there are not so many.
        """
        if wanted > len(self._free):
            raise OutOfMemory(
                f"the KV cache needs {wanted} more blocks and has {len(self._free)} of "
                f"{self.count} free",
                hint="take a smaller batch or a shorter context, or give the cache more blocks",
            )
        return [self._free.pop() for _ in range(wanted)]

    def give_back(self, blocks: list[int]) -> None:
        """Blocks that were taken, in any order.

        Raises:
            ValueError: a block that is free already, or not of this pool.
        """
        free = set(self._free)
        if len(set(blocks)) != len(blocks) or not all(
            0 <= block < self.count and block not in free for block in blocks
        ):
            raise ValueError(f"blocks {blocks} are not all taken from this pool")
        self._free.extend(reversed(blocks))

    def grow(self, count: int) -> None:
        """Adds blocks up to `count` in all."""
        self._free = [*range(count - 1, self.count - 1, -1), *self._free]
        self.count = count


@dataclass(slots=True)
class BlockTable:
    """One sequence: its blocks in order, and how many tokens they hold."""

    block_size: int
    blocks: list[int]
    length: int = 0

    def missing(self, tokens: int) -> int:
        """How many blocks more it takes to append `tokens`."""
        return max(0, -(-(self.length + tokens) // self.block_size) - len(self.blocks))

    def append(self, tokens: int, blocks: list[int]) -> None:
        """Grows by `tokens`, into `blocks` (as many as `missing` says)."""
        self.blocks.extend(blocks)
        self.length += tokens
