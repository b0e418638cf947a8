"""How a step's attention is cut into work items of about equal length. No Triton, no device.

An item is one tile of queries of one sequence over one part of its context; one program runs it
for each KV head. Contexts are cut so that a few long sequences fill the device, and unequal
ones end together; a tile in more than one part leaves partial results, which a group adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

ITEM_FIELDS: Final = 8
"""sequence, first token, tokens, position of the first token, first slot, end, partial, unused"""
GROUP_FIELDS: Final = 4
"""first token, tokens, first partial, count of partials"""

Table = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of the tiles: a matter of the kernel, not of the step."""

    tokens: int
    """Tokens of a tile of queries."""
    slots: int
    """Slots of the context that are read at once: parts are multiples of it."""
    least: int
    """Slots of the shortest part that is worth a program of its own."""
    programs: int
    """As many items times KV heads fill the device a few times over."""


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Items and groups of one launch, of fixed sizes for a number of tiles.

    items: int32[capacity, ITEM_FIELDS]; rows without tokens do nothing. groups: int32[tiles,
    GROUP_FIELDS]. `partials`: rows of partial results that the items name, less than capacity.
    """

    items: Table
    groups: Table
    partials: int


def capacity(tiles: int, kv_heads: int, tiling: Tiling) -> int:
    """The most items that `plan` makes of so many tiles, whatever their contexts."""
    return tiles + max(1, tiling.programs // kv_heads)


def plan(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    chosen: NDArray[np.int64],
    kv_heads: int,
    window: int,
    tiling: Tiling,
) -> AttentionWork:
    """Cuts the sequences `chosen` (indices, int64[n]) of a step into items.

    A query sees what is before it, itself included, and of that the last `window` if that is not
    0. Longest parts come first, since a device takes items in order.
    """
    queries = np.asarray(query_lens, np.int64)
    contexts = np.asarray(context_lens, np.int64)[chosen]
    starts = np.concatenate(([0], np.cumsum(queries)[:-1]))[chosen]
    queries = queries[chosen]
    tiles_of = -(-queries // tiling.tokens)
    owner = np.repeat(np.arange(len(chosen)), tiles_of)
    number = _within(tiles_of)
    before = number * tiling.tokens
    tokens = np.minimum(queries[owner] - before, tiling.tokens)
    position = contexts[owner] - queries[owner] + before
    stop = position + tokens
    start = np.maximum(0, position - window + 1) if window else np.zeros_like(stop)

    length = stop - start
    part = _part(int(length.sum()), int(length.max(initial=0)), kv_heads, tiling)
    parts = np.maximum(1, -(-length // part))
    tile = np.repeat(np.arange(len(owner)), parts)
    begin = start[tile] + _within(parts) * part
    end = np.minimum(begin + part, stop[tile])
    is_split = parts[tile] > 1
    partial = np.where(is_split, np.cumsum(is_split) - 1, -1)

    most = capacity(len(owner), kv_heads, tiling)
    items = np.zeros((most, ITEM_FIELDS), np.int32)
    columns = chosen[owner[tile]], (starts[owner] + before)[tile], tokens[tile], position[tile]
    found = np.stack([*columns, begin, end, partial], axis=1)
    items[: len(tile), : found.shape[1]] = found[np.argsort(begin - end, kind="stable")]

    groups = np.zeros((len(owner), GROUP_FIELDS), np.int32)
    split = np.flatnonzero(parts > 1)
    counts = parts[split]
    first = np.cumsum(counts) - counts
    groups[: len(split)] = np.stack(
        [(starts[owner] + before)[split], tokens[split], first, counts], axis=1
    )
    return AttentionWork(items, groups, int(is_split.sum()))


def _part(slots: int, longest: int, kv_heads: int, tiling: Tiling) -> int:
    """Slots of a part: so many that all parts together fill the device, and no more are made."""
    wanted = max(1, tiling.programs // kv_heads)
    part = max(tiling.least, -(-slots // wanted))
    return max(1, -(-min(part, max(longest, 1)) // tiling.slots)) * tiling.slots


def _within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n] -> int64[sum]: 0 to counts[i] - 1 for each i, in a row."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
