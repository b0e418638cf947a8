"""The one formula by which results are judged. It belongs to the suite: no adapter sets it.

    budget = 2 x (eps(dtype) x (|value| + magnitude)
                  + eps(float32) x sqrt(terms) x magnitude x amplification)
             + smallest normal number of the dtype

`magnitude` is the root of the sum of squares of the terms behind an element. A chip may round
its result and one intermediate to the dtype, and must accumulate in float32: a sum of n terms
that is added up one by one has an error of about 0.35 sqrt(n) eps magnitude. Where the magnitude
is zero the result is a copy, and must be equal bit by bit. What the dtype cannot hold is infinite:
so a value beyond its largest number, or within the budget of that, may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from vllm_adapter_conformance.ops.trial import Expected

FACTOR: Final = 2.0
"""Never above 8; plain torch must use at least 1 % of the budget (a test shows it)."""


@dataclass(frozen=True, slots=True)
class ToleranceResult:
    """The worst element of one output: its index, both values, and its share of the budget."""

    share: float
    index: tuple[int, ...]
    got: float
    want: float


def compare(got: torch.Tensor, want: Expected, terms: int) -> ToleranceResult:
    """Holds one output (any device, the case's dtype) against the float64 reference.

    got: [...], of the case's dtype; want.value: float64 [...] on the host.

    A NaN or infinity where the reference has none, or the reverse, has an infinite share; so has
    another shape.
    """
    result, value = got.detach().cpu(), want.value
    if result.shape != value.shape:
        return ToleranceResult(math.inf, (), math.nan, math.nan)
    if result.numel() == 0:
        return ToleranceResult(0.0, (), 0.0, 0.0)
    wide = result.double()
    same = (wide == value) | (wide.isnan() & value.isnan())
    if same.all():
        first = float(wide.flatten()[0])
        return ToleranceResult(0.0, (0,) * wide.ndim, first, first)
    budget = budget_of(result.dtype, want, terms)
    if wide.isinf().any():
        beyond = (value.abs() + budget > torch.finfo(result.dtype).max) & (want.magnitude > 0)
        same |= wide.isinf() & beyond & (wide.sign() == value.sign())
    share = torch.where(same, 0.0, (wide - value).abs() / budget)
    share = share.nan_to_num(nan=math.inf, posinf=math.inf)
    worst = int(share.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), share.shape))
    return ToleranceResult(
        float(share.flatten()[worst]),
        index,
        float(result.flatten()[worst].double()),
        float(value.flatten()[worst]),
    )


def budget_of(dtype: torch.dtype, want: Expected, terms: int) -> torch.Tensor:
    """How far each element of a result in `dtype` may be from its reference: float64 [...]."""
    info, accumulate = torch.finfo(dtype), torch.finfo(torch.float32).eps
    rounding = info.eps * (want.value.abs() + want.magnitude)
    summing = accumulate * math.sqrt(terms) * want.magnitude * want.amplification
    budget = FACTOR * (rounding + summing) + info.smallest_normal
    return torch.where(want.magnitude > 0, budget, torch.zeros_like(budget))
