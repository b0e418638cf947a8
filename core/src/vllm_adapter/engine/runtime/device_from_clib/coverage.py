"""Which aten operators ran on the host for want of a kernel."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import torch


class Coverage:
    """Counts by operator and overload, as in `aten::sort.stable`. Any thread may use it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def record(self, op: torch._ops.OpOverload) -> bool:
        """Counts one call; whether it was the first of its operator since the last `reset`."""
        name = name_of(op)
        with self._lock:
            self._counts[name] += 1
            return self._counts[name] == 1

    def counts(self) -> Mapping[str, int]:
        """What fell back so far, and how often; the most frequent first."""
        with self._lock:
            return dict(self._counts.most_common())

    def reset(self) -> None:
        """Begins anew."""
        with self._lock:
            self._counts.clear()


def name_of(op: torch._ops.OpOverload) -> str:
    """`aten::add.Tensor`; the default overload has no name of its own: `aten::relu`."""
    name, overload = op._schema.name, op._schema.overload_name
    return f"{name}.{overload}" if overload else name
