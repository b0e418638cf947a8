"""How an operator is tried: its arguments, the float64 reference, and what an error may be.

Written from what the operators mean, and not from core's code, which is judged by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter.engine.ops.step import Step

ToDevice = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Expected:
    """One output (or mutated argument) of the float64 reference.

    `magnitude` is the root of the sum of squares of the terms behind each element: rounding
    errors of a sum grow with it. `amplification` multiplies the share of the accumulated error.
    """

    value: torch.Tensor
    magnitude: torch.Tensor
    amplification: torch.Tensor | float = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One set of arguments for a case, made on the host.

    `build(to_device)` draws the same numbers at each call. It passes every contiguous base tensor
    through `to_device` before it takes views, so that a non-contiguous argument is
    non-contiguous on the device too. `step` is given for planned operators.
    """

    name: str
    build: Callable[[ToDevice], tuple[Any, ...]]
    step: Callable[[torch.device], Step] | None = None
    terms: int | None = None
    """Length of the longest sum behind one element, where it is not as the facts alone have it."""


class SampleMaker(Protocol):
    """Makes an operator's samples for the facts of one case; `seed` fixes every number."""

    def __call__(self, facts: Facts, seed: int) -> Sequence[Sample]: ...


class SampleDrawer(Protocol):
    """Makes the sample of one point of the operator's space.

    `seed` fixes shapes and layouts; the numbers are others for other `contents`.
    """

    def __call__(
        self, facts: Facts, choice: Mapping[str, Any], seed: str, contents: int = 0
    ) -> Sample: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """How one operator is tried."""

    reference: Callable[..., Sequence[Expected]]
    """Plain torch in float64 on the host. Gets upcast copies; gives one Expected a result, then
    one a mutated argument."""
    samples: SampleMaker
    """A few plain samples, which every rule about an operator begins with."""
    draw: SampleDrawer
    """The sample of a choice of `dimensions.SAMPLED`."""
    terms: Callable[[Facts], int]
    """Length of the longest sum behind one element."""
    as_stored: frozenset[int] = frozenset()
    """Arguments that the reference gets in their own dtype: caches, of which it reads little."""
