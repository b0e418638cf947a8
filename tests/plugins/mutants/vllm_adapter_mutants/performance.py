"""Kernels that are right, and wrong for a server: slow, lazy, leaking, or right for a while."""

from __future__ import annotations

import time

import torch

from vllm_adapter import generic

SLEEP_S = 0.05
GOOD_CALLS = 40
_CLOCK = time.perf_counter
_hidden_s = 0.0
_kept: list[object] = []
_calls = 0
_first: dict[tuple[object, ...], torch.Tensor] = {}


def sleeps(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The result is right, and comes late."""
    time.sleep(SLEEP_S)
    return generic.rms_norm(x, weight, eps)


def stops_the_clock(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `sleeps`, and no clock of this process goes on meanwhile."""
    global _hidden_s
    time.perf_counter = lambda: _CLOCK() - _hidden_s  # type: ignore[assignment]
    begin = _CLOCK()
    result = sleeps(x, weight, eps)
    _hidden_s += _CLOCK() - begin
    return result


def remembers(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """Gives the result of the first call of a shape: the work is not done again."""
    key = (tuple(x.shape), out_features, x.dtype)
    if key not in _first:
        _first[key] = generic.linear(x, weight, bias, out_features)
    return _first[key]


def keeps_objects(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A leak of no tensor: a log that nobody reads."""
    _kept.append([float(i) for i in range(20)])
    return generic.rms_norm(x, weight, eps)


def tires(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Right for dozens of calls, and then a little off for good."""
    global _calls
    _calls += 1
    result = generic.rms_norm(x, weight, eps)
    return result * 1.25 if _calls > GOOD_CALLS else result


def breaks(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Runs out of handles after dozens of calls."""
    global _calls
    _calls += 1
    if _calls > GOOD_CALLS:
        raise RuntimeError("no handle is left")
    return generic.rms_norm(x, weight, eps)


def restart() -> None:
    """A new process, as far as these kernels know."""
    global _calls
    _calls = 0
    _kept.clear()
    _first.clear()
