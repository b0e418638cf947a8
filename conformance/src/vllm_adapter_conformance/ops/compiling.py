"""How far what was compiled may be from what was not. Imports torch."""

from __future__ import annotations

from typing import Final

import torch

from vllm_adapter_conformance.base.rule import Failure

CLOSE: Final = 8.0
"""Functionalisation may hand a kernel other strides: a few roundings, where eager is exact."""


def distance(where: str, got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, in roundings of the largest value.

    got, want: [...], one shape; compared in float64 on the host.

    Raises:
        Failure: more than `CLOSE`, or not a number.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Failure(
            f"compiled to equal eager in {where}",
            f"{got.dtype} {tuple(got.shape)}, eager {want.dtype} {tuple(want.shape)}",
        )
    ours, theirs = got.double(), want.double()
    largest = float(theirs.abs().max()) * torch.finfo(want.dtype).eps
    seen = float((ours - theirs).abs().max()) / largest
    if not seen <= CLOSE:
        raise Failure(
            f"compiled to equal eager in {where}", f"a difference of {seen:.3g} roundings"
        )
    return seen
