"""Right values in wrong places: rows that hold another's, columns that moved. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

_SEEN: Final = 48
"""Elements of a slice by which its like is looked for, before all of it is compared."""
_MOST: Final = 4096
"""Slices of a dimension that are compared with each other."""
_ALL: Final = 0.99


def moved(
    got: torch.Tensor,
    want: torch.Tensor,
    budget: torch.Tensor,
    mask: torch.Tensor,
    names: Sequence[str],
) -> tuple[str, str] | None:
    """(a word, a sentence) if the wrong elements are the reference's of other places, else None.

    got, want, budget: float64 [...]; mask: bool [...], the wrong elements that are numbers.
    """
    if want.dim() == 2 and want.shape[0] == want.shape[1] > 2 and _close(got, want.T, budget.T):
        return "transposed", "rows and columns are exchanged"
    for axis, name in enumerate(names):
        slices = [t.movedim(axis, 0).reshape(t.shape[axis], -1) for t in (got, want, budget, mask)]
        if sources := _sources(*slices):
            last = axis == len(names) - 1
            return f"other {name}", _sentence(sources, want.shape[axis], name, last=last)
    return None


def _close(got: torch.Tensor, want: torch.Tensor, budget: torch.Tensor) -> bool:
    good = ((got - want).abs() <= budget) | (got == want)
    return float(good.double().mean()) >= _ALL


def _sources(
    got: torch.Tensor, want: torch.Tensor, budget: torch.Tensor, mask: torch.Tensor
) -> Mapping[int, int]:
    """Slice by slice, whose values stand in it; empty unless that holds for all wrong ones.

    got, want, budget, mask: [slices, elements].
    """
    wrong = mask.any(1).nonzero().flatten()
    if want.shape[1] < 2 or not 1 < want.shape[0] <= _MOST or not bool(want.isfinite().all()):
        return {}
    if bool((want == want[:1]).all()):
        return {}
    step = max(1, want.shape[1] // _SEEN)
    far = torch.cdist(
        got[wrong, ::step].nan_to_num(),
        want[:, ::step],
        p=1,
        compute_mode="donot_use_mm_for_euclid_dist",
    )
    sources: dict[int, int] = {}
    for number, source in zip(wrong.tolist(), far.argmin(1).tolist(), strict=True):
        if source == number or not _close(got[number], want[source], budget[source]):
            return {}
        sources[number] = source
    return sources


def _sentence(sources: Mapping[int, int], size: int, name: str, *, last: bool) -> str:
    pairs = list(sources.items())
    if len(pairs) == 1:
        ((number, source),) = pairs
        return f"{name} {number} holds the values of {name} {source}"
    if len(set(sources.values())) == 1:
        return f"all hold {name} {pairs[0][1]}'s values"
    if all(source == size - 1 - number for number, source in pairs):
        return f"the {name}s are in reverse order"
    if all(source == number ^ 1 for number, source in pairs):
        return f"neighbouring {name}s are swapped"
    if size % 2 == 0 and all(source == (number + size // 2) % size for number, source in pairs):
        return (
            "the halves of each row are swapped"
            if last
            else f"the halves of the {name}s are swapped"
        )
    if len(by := {(source - number) % size for number, source in pairs}) == 1:
        (shift,) = by
        return f"each {name} holds the values of {_neighbour(shift, size, name)}"
    return f"each {name} holds the values of another {name}"


def _neighbour(shift: int, size: int, name: str) -> str:
    back = size - shift
    if shift == 1:
        return f"the next {name}"
    if back == 1:
        return f"the {name} before"
    return f"the {name} {shift} on" if shift <= back else f"the {name} {back} before"
