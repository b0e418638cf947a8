"""What a decode step reads on the device, at addresses that stay: one set for a batch size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_adapter.engine.kv_cache.blocks import BlockTable
from vllm_adapter.engine.ops.step import Step


class StepBuffers:
    """The tensors of a decode step for up to `rows` sequences of up to `blocks` blocks.

    Rows that no sequence has are padding: one token, at a slot below 0, that sees slot 0 of
    block 0; their results are not read.
    """

    def __init__(self, rows: int, blocks: int, block_size: int, device: torch.device) -> None:
        self.rows, self.block_size, self.device = rows, block_size, device
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self.slots = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self.seq_lens = torch.ones(rows, dtype=torch.int32, device=device)
        self.table = torch.zeros(rows, blocks, dtype=torch.int32, device=device)
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._table: NDArray[np.int32] = np.zeros((rows, blocks), np.int32)
        self._held: list[tuple[int, int]] = [(0, 0)] * rows
        """Identity and length of what each row of the table holds."""

    def fill(self, sequences: Sequence[BlockTable]) -> Step:
        """The step that appends one token to each sequence, whose length counts it already."""
        count = len(sequences)
        lengths = np.ones(self.rows, np.int64)
        lengths[:count] = [sequence.length for sequence in sequences]
        places = lengths - 1
        self._fill_table(sequences)
        slots = np.full(self.rows, -1, np.int64)
        rows = np.arange(count)
        blocks = self._table[rows, places[:count] // self.block_size].astype(np.int64)
        slots[:count] = blocks * self.block_size + places[:count] % self.block_size
        places[count:] = 0
        self._copy(places, self.positions)
        self._copy(slots, self.slots)
        self._copy(lengths.astype(np.int32), self.seq_lens)
        return Step(
            query_lens=(1,) * self.rows,
            context_lens=tuple(lengths.tolist()),
            slot_mapping=self.slots,
            block_table=self.table,
            seq_lens=self.seq_lens,
            query_start_loc=self.starts,
            positions=self.positions,
            block_size=self.block_size,
        )

    def _fill_table(self, sequences: Sequence[BlockTable]) -> None:
        changed = False
        for row, sequence in enumerate(sequences):
            held = id(sequence.blocks), len(sequence.blocks)
            if self._held[row] != held:
                self._table[row, : held[1]] = sequence.blocks
                self._held[row] = held
                changed = True
        for row in range(len(sequences), self.rows):
            if self._held[row] != (0, 0):
                self._table[row, 0], self._held[row] = 0, (0, 0)
                changed = True
        if changed:
            self._copy(self._table, self.table)

    def _copy(self, values: NDArray[np.int64] | NDArray[np.int32], place: torch.Tensor) -> None:
        host = torch.from_numpy(values)
        if self.device.type != "cpu":
            # torch keeps pinned memory until the copy is done.
            host = host.pin_memory(self.device)
        place.copy_(host, non_blocking=True)
