"""A step captured in the device's graph, where it has graphs and the plans stay in place."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

_log = logging.getLogger("vllm_adapter.runner")


def has_graphs(device: torch.device) -> bool:
    """Whether torch can capture and replay launches on the device."""
    return device.type == "cuda" and torch.cuda.is_available()


def addresses(state: Any) -> tuple[int, ...]:
    """Addresses of all tensors that a plan's state holds, however deep; for comparison alone."""
    return tuple(_addresses(state, set()))


def _addresses(state: Any, seen: set[int]) -> Iterator[int]:
    if isinstance(state, torch.Tensor):
        yield state.data_ptr()
        return
    if id(state) in seen:
        return
    seen.add(id(state))
    parts: Any = ()
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        parts = [getattr(state, field.name) for field in dataclasses.fields(state)]
    elif isinstance(state, Mapping):
        parts = list(state.values())
    elif isinstance(state, (list, tuple)):
        parts = state
    for part in parts:
        yield from _addresses(part, seen)


class CapturedStep:
    """One captured step. `replay` runs it; what it reads and writes stays where it was."""

    def __init__(self, run: Callable[[], torch.Tensor], device: torch.device) -> None:
        """Runs once to let kernels compile and allocate, then captures the second run."""
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.result = run()

    def replay(self) -> torch.Tensor:
        """The step's result, which the next replay overwrites."""
        self._graph.replay()
        return self.result
