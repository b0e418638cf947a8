"""What a wrong result looks like: how many elements, which, and what stands there. Imports torch.

The worst element alone says little: a tail that is never written, a head that reads another's
keys and a sum in bfloat16 look unlike each other, and who is told how knows where to search.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from vllm_adapter_conformance.ops import pattern_values

HEADS: Final = ("token", "head", "column")
AXES: Final[Mapping[str, Sequence[str]]] = {
    "attention": HEADS,
    "paged_attention": HEADS,
    "rotary_embedding": HEADS,
    "reshape_and_cache": ("block", "slot", "head", "column"),
}
"""What the dimensions of an operator's results and mutated arguments are; others have rows."""
_LISTED: Final = 5
_FULL: Final = 0.9
"""Share of the named indices' elements that must be wrong: some are right by chance."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which elements of a result are wrong, and how. `cause` is a word to compare failures by."""

    wrong: int
    of: int
    sentences: tuple[str, ...]
    cause: str = ""


def describe(
    got: torch.Tensor,
    want: torch.Tensor,
    budget: torch.Tensor,
    *,
    axes: Sequence[str] = (),
    before: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> Pattern:
    """The pattern of a result's errors.

    got: [...] of the case's dtype on any device; want, budget: float64 [...] on the host; `axes`
    names its dimensions, which are rows and columns where their number is another. `before`: [...]
    what an argument that is written in place held before the call. `scale`: float64 [...], what
    the error of a rounding grows with, where that is not the element itself.
    """
    given, dtype = got.detach().cpu().double(), got.dtype
    mask = wrong_elements(given, want, budget)
    count = int(mask.sum())
    if not count:
        return Pattern(0, want.numel(), ())
    names = tuple(axes) if len(axes) == want.dim() else _names(want.dim())
    shape = want.shape if len(names) == want.dim() else (-1, want.shape[-1])
    place, kind = _place(mask.reshape(shape), names, mask)
    told = _count(count, want.numel()) + (f", {place}" if place else "")
    wide = None if before is None else before.detach().cpu().double().reshape(shape)
    found = pattern_values.explain(
        pattern_values.Errors(
            given.reshape(shape),
            want.reshape(shape),
            budget.expand(want.shape).reshape(shape),
            mask.reshape(shape),
            dtype,
            wide,
            None if scale is None else scale.expand(want.shape).reshape(shape),
        ),
        names,
    )
    cause = found[0][0] if found else kind
    return Pattern(count, want.numel(), (told, *(text for _, text in found)), cause)


def wrong_elements(got: torch.Tensor, want: torch.Tensor, budget: torch.Tensor) -> torch.Tensor:
    """bool [...]: what is farther from the reference than its budget; NaN is right for NaN alone.

    got, want, budget: float64 [...].
    """
    same = (got == want) | (got.isnan() & want.isnan())
    error = (got - want).abs()  # infinite beside an infinity, whose budget is infinite too
    return ~same & ~((error <= budget) & error.isfinite())


def _names(dimensions: int) -> tuple[str, ...]:
    return ("element",) if dimensions <= 1 else ("row", "column")


def _count(count: int, of: int) -> str:
    if count == of > 1:
        return f"all {count} elements are wrong"
    return f"{count} of {of} elements {'is' if count == 1 else 'are'} wrong"


def _place(mask: torch.Tensor, names: Sequence[str], whole: torch.Tensor) -> tuple[str, str]:
    """(where the wrong elements are, one word for it); both empty where it is everywhere."""
    if bool(mask.all()):
        return "", "everywhere"
    if int(mask.sum()) == 1:
        return f"at {whole.nonzero()[0].tolist()}", "one element"
    hit = [mask.movedim(axis, 0).reshape(size, -1).any(1) for axis, size in enumerate(mask.shape)]
    parts = [
        (name, indices.nonzero().flatten().tolist(), len(indices))
        for name, indices in zip(names, hit, strict=True)
        if not bool(indices.all())
    ]
    box = 1
    for indices in hit:
        box *= int(indices.sum())
    said = [found for part in parts if (found := _indices(*part))]
    if not said:
        everywhere = int(mask.sum()) >= _FULL * mask.numel()
        return ("", "everywhere") if everywhere else _progression(mask)
    text = "in " + ", ".join(words for words, _ in said)
    if int(mask.sum()) < _FULL * box:
        text += ", though not all of it"
    return text, " ".join(dict.fromkeys(kind for _, kind in said))


def _progression(mask: torch.Tensor) -> tuple[str, str]:
    """Elements in the order of memory, where no dimension says anything."""
    at = mask.flatten().nonzero().flatten()
    steps = at.diff()
    if len(at) > 2 and int(steps[0]) > 1 and bool((steps == steps[0]).all()):
        every = f"in every {_ordinal(int(steps[0]))} element, from {int(at[0])} on"
        return every, "every nth"
    return "scattered", "scattered"


def _indices(name: str, at: Sequence[int], size: int) -> tuple[str, str] | None:
    """Indices of one dimension in words, and a word for their kind; None if it tells nothing."""
    first, last = at[0], at[-1]
    if len(at) == 1:
        if first == size - 1:
            return f"the last {name} ({first})", f"one {name}"
        return f"{name} {first}", f"one {name}"
    if last - first == len(at) - 1:
        if last == size - 1:
            return f"the tail: {name}s from {first} on", f"tail of {name}s"
        return f"{name}s {first} to {last}", f"run of {name}s"
    step = at[1] - first
    even = all(b - a == step for a, b in itertools.pairwise(at))
    if even and first < step and last + step >= size and (len(at) > 2 or step < 4):
        return f"every {_ordinal(step)} {name}, from {first} on", f"every nth {name}"
    if len(at) <= _LISTED:
        listed = ", ".join(map(str, at[:-1]))
        return f"{name}s {listed} and {last}", f"some {name}s"
    return (f"{len(at)} of {size} {name}s", f"some {name}s") if 2 * len(at) < size else None


def _ordinal(number: int) -> str:
    tens = number % 100 in (11, 12, 13)
    ending = "th" if tens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
