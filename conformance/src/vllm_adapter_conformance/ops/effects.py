"""Which dimensions of a draw change what is run, without torch.

An empty batch has no lengths, and a decode step no queries beside one a sequence: a member that
changes nothing there was not visited, however often it was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

LONGEST_PREFILL: Final = 600
"""Tokens of the longest prompt that a prefill draws."""

DECIDING: Final = ("batch", "tokens", "rows", "padding", "phase", "context", "queries")
"""The dimensions by which `effects` decides."""


def effects(op: str, row: Mapping[str, Any]) -> frozenset[str] | None:
    """The names that take effect; None where all do."""
    for name in ("batch", "tokens", "rows"):
        if name in row and _is_empty(row[name]):
            return frozenset({"dtype", name, "history"})
    if row.get("padding") == "all":
        return frozenset({"dtype", "padding", "tokens", "ids", "history"})
    if op == "paged_attention":
        return frozenset(row) - _without(row)
    return None


def _is_empty(size: Any) -> bool:
    return math.prod(size) == 0 if isinstance(size, tuple) else size == 0


def _without(row: Mapping[str, Any]) -> frozenset[str]:
    """What a batch over a cache does not show: as `lengths.paged_lengths` makes it."""
    phase, context, queries = row["phase"], row["context"], row["queries"]
    if phase == "decode":
        return frozenset({"queries"})
    if phase == "prefill":
        is_long = isinstance(context, int) and context > LONGEST_PREFILL
        is_more = isinstance(context, int) and queries > context
        return frozenset({"queries", "context"} if is_long or is_more else {"queries"})
    is_hidden = not isinstance(context, int) or queries > context
    return frozenset({"context"} if is_hidden else ())
