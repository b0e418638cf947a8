"""The table of rotary embeddings: made as far as batches need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch

from vllm_adapter.errors import UnsupportedModel

FIRST: Final = 4096
"""Positions of the first table; a table is doubled when it is too short."""
PIECE: Final = 65_536
"""Positions computed at once: transformers computes in float32, and several tensors of it."""


@dataclass(eq=False)
class RopeTable:
    """[positions, head_size] of cos, then sin, from the model's own module.

    A longer table is another tensor: whoever made a step with the old one keeps that.
    """

    rotary: Any
    head_size: int
    limit: int
    dtype: torch.dtype
    _table: torch.Tensor | None = field(default=None, init=False)

    def upto(self, positions: int) -> torch.Tensor:
        """A table that has at least so many positions.

        Gives [positions or more, head_size]: cos, then sin.

        Raises:
            UnsupportedModel: the model has fewer.
        """
        if positions > self.limit:
            raise UnsupportedModel(
                f"the batch needs {positions} positions, and the model has {self.limit}",
                hint="shorten the prompt, or generate fewer tokens",
            )
        table = self._table
        known = 0 if table is None else table.shape[0]
        if table is None or positions > known:
            wanted = min(self.limit, max(FIRST, 2 * known, positions))
            made = self._rows(known, wanted)
            table = self._table = made if table is None else torch.cat((table, made))
        return table

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        device = self.rotary.inv_freq.device
        rows = torch.empty(stop - start, self.head_size, dtype=self.dtype, device=device)
        like = torch.empty(0, dtype=self.dtype, device=device)
        half = self.head_size // 2
        for first in range(start, stop, PIECE):
            last = min(first + PIECE, stop)
            positions = torch.arange(first, last, device=device)[None]
            cos, sin = self.rotary(like, position_ids=positions)
            if cos.shape[-1] != self.head_size:
                raise UnsupportedModel(
                    f"rope that turns {cos.shape[-1]} of {self.head_size} elements is not served",
                    hint="run the model as it is",
                )
            into = rows[first - start : last - start]
            into[:, :half], into[:, half:] = cos[0, :, :half], sin[0, :, :half]
        return rows
