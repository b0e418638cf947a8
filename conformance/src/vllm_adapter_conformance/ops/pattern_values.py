"""What stands in the place of right values: zeros, another row's, a factor, fewer bits.

Each look is a function of `Errors` that gives (one word for it, a sentence) or None; the first
that explains all wrong elements is told. Imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from vllm_adapter_conformance.ops.pattern_order import moved

Found = tuple[str, str]
_FEW: Final = 3
"""Elements that a factor or an offset must explain to be one."""
_MANY: Final = 8
"""Elements from which bits are counted."""
_ALL: Final = 0.99
PRECISION: Final = "precision"
_NARROW: Final = (torch.float8_e5m2, torch.float8_e4m3fn, torch.bfloat16, torch.float16)
_LIKE: Final = {3: "float8_e5m2", 4: "float8_e4m3fn", 8: "bfloat16", 11: "float16 or TF32"}
_RMS: Final = 0.5
"""The root mean square of an error of rounding, as a share of the last bit's half: between an even
one (0.58) and that of numbers whose first digits are spread as nature's are (0.42)."""


@dataclass(frozen=True, slots=True)
class Errors:
    """A result against its reference: all float64 [...], the mask bool [...]."""

    got: torch.Tensor
    want: torch.Tensor
    budget: torch.Tensor
    mask: torch.Tensor
    dtype: torch.dtype
    before: torch.Tensor | None = None
    scale: torch.Tensor | None = None

    @property
    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the wrong elements alone: [wrong] twice."""
        return self.got[self.mask], self.want[self.mask]

    @property
    def dense(self) -> bool:
        """Whether most elements are wrong wherever some are: few of many are no fair choice."""
        box = 1
        for axis, size in enumerate(self.mask.shape):
            box *= int(self.mask.movedim(axis, 0).reshape(size, -1).any(1).sum())
        return 2 * int(self.mask.sum()) >= box

    def near(self, other: torch.Tensor, by: torch.Tensor | None = None) -> bool:
        """Whether other numbers explain the wrong elements: [wrong], within the budget and a
        rounding of what was computed."""
        eps = torch.finfo(self.dtype).eps
        got, want = self.pair
        slack = 2 * self.budget[self.mask] + 2 * eps * (other.abs() + want.abs())
        allowed = slack if by is None else slack + by
        return float(((got - other).abs() <= allowed).double().mean()) >= _ALL


def explain(errors: Errors, names: Sequence[str]) -> list[Found]:
    """What the wrong elements are: what is no number first, then one look at the rest."""
    found, rest = _no_numbers(errors)
    if not bool(rest.mask.any()):
        return found
    looks: list[Callable[[Errors], Found | None]] = [
        *(_unwritten, _zeros, _constant),
        lambda e: moved(e.got, e.want, e.budget, e.mask, names),
        *(_lost_sign, _flipped, _clipped),
    ]
    if rest.dense:
        looks += [_factor, _row_factor, _offset, _row_offset, _bits]
    else:
        looks.append(_bits_of_all)
    seen = next((s for look in looks if (s := look(rest)) is not None), None)
    return found if seen is None else [*found, seen]


def _no_numbers(errors: Errors) -> tuple[list[Found], Errors]:
    """NaN and infinity, on either side; and the errors without them."""
    found: list[Found] = []
    got, want, mask = errors.got, errors.want, errors.mask
    count = int(mask.sum())
    for key, here, text in (
        ("NaN hidden", mask & want.isnan() & ~got.isnan(), "numbers where NaN is expected"),
        (
            "infinity hidden",
            mask & want.isinf() & got.isfinite(),
            "numbers where infinity is expected",
        ),
        ("NaN", mask & got.isnan(), "NaN"),
        ("infinite", mask & got.isinf() & ~want.isnan(), "infinite"),
    ):
        number = int(here.sum())
        if number:
            who = "they are" if number == count else f"{number} of them {_be(number)}"
            found.append((key, f"{who} {text}"))
            mask = mask & ~here
    return found, replace(errors, mask=mask)


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _unwritten(errors: Errors) -> Found | None:
    if errors.before is None:
        return None
    got, _ = errors.pair
    held = errors.before[errors.mask]
    same = (got == held) | (got.isnan() & held.isnan())
    if bool(same.all()):
        return "not written", "they are what was there before: not written"
    return None


def _zeros(errors: Errors) -> Found | None:
    got, want = errors.pair
    if bool((got != 0).any()):
        return None
    if bool((want.abs() < torch.finfo(errors.dtype).smallest_normal).all()):
        return "denormal", "denormal numbers became zero"
    return "zeros", "they are zeros"


def _constant(errors: Errors) -> Found | None:
    got, want = errors.pair
    first = float(got[0])
    if len(got) < _FEW or bool((got != first).any()) or bool((want == want[0]).all()):
        return None
    return "constant", f"they are all {first:.5g}"


def _lost_sign(errors: Errors) -> Found | None:
    _, want = errors.pair
    if len(want) < _FEW or bool((want >= 0).any()) or not errors.near(-want):
        return None
    return "sign", "they lost their minus sign"


def _flipped(errors: Errors) -> Found | None:
    _, want = errors.pair
    return ("sign", "the sign is flipped") if errors.near(-want) else None


def _factor(errors: Errors) -> Found | None:
    got, want = errors.pair
    if len(got) < _FEW or bool((want == want[0]).all()):
        return None
    factor = _slope(got, want)
    if not math.isfinite(factor) or not errors.near(factor * want):
        return None
    return "factor", f"they are {factor:.5g} times what is expected"


def _row_factor(errors: Errors) -> Found | None:
    rows = _rows(errors)
    factors = [_slope(one.got[one.mask], one.want[one.mask]) for one in rows]
    held = all(
        math.isfinite(c) and one.near(c * one.pair[1])
        for one, c in zip(rows, factors, strict=True)
    )
    if len(rows) < 2 or not held:
        return None
    span = f"{min(factors):.5g} to {max(factors):.5g}"
    return "row factor", f"each row is off by a factor of its own, {span}"


def _offset(errors: Errors) -> Found | None:
    got, want = errors.pair
    by = float((got - want).mean())
    if len(got) < _FEW or not errors.near(want + by):
        return None
    more = "more" if by > 0 else "less"
    return "offset", f"they are {abs(by):.5g} {more} than expected"


def _row_offset(errors: Errors) -> Found | None:
    rows = _rows(errors)
    held = all(one.near(one.pair[1] + (one.pair[0] - one.pair[1]).mean()) for one in rows)
    if len(rows) < 2 or not held:
        return None
    return "row offset", "each row is off by an amount of its own"


def _clipped(errors: Errors) -> Found | None:
    got, want = errors.pair
    bound = float(got[0].abs())
    ends = bool((got.abs() == bound).all()) and bool((want.abs() > bound).all())
    if len(got) < _FEW or not ends or bool((got.sign() != want.sign()).any()):
        return None
    return "clipped", f"they are clipped at {bound:.5g}"


def _bits(errors: Errors) -> Found | None:
    """A rounding to fewer bits, or an error as that of one."""
    got, want = errors.pair
    if len(got) < _MANY:
        return None
    for dtype in _NARROW:
        info = torch.finfo(dtype)
        if info.eps <= torch.finfo(errors.dtype).eps:
            continue
        rounded = want.float().to(dtype).double()
        if float((rounded == got).double().mean()) >= _ALL:
            name, kept = str(dtype).removeprefix("torch."), round(1 - math.log2(info.eps))
            return PRECISION, f"they are rounded to {name} ({kept} bits)"
    error = _relative(errors)
    if error is None:
        return None
    rms = float(error.square().mean().sqrt())
    bits = -math.log2(rms / _RMS)
    if not 2.5 <= bits <= 22:
        return None
    toward = float(((got.abs() < want.abs()) & (got.sign() * want.sign() >= 0)).double().mean())
    if toward >= _ALL:
        return PRECISION, f"about {round(bits + 1)} bits are right, cut off toward zero"
    whole = round(bits)
    like = _LIKE.get(whole)
    own = round(1 - math.log2(torch.finfo(errors.dtype).eps))
    if like is None or whole >= own:
        return PRECISION, f"about {whole} bits are right, of {own}"
    return PRECISION, f"about {whole} bits are right, as if computed in {like}"


def _bits_of_all(errors: Errors) -> Found | None:
    """The bits of all elements, where the wrong ones are only the farthest off."""
    every = replace(errors, mask=errors.want.isfinite() & errors.got.isfinite())
    own = 1 - math.log2(torch.finfo(errors.dtype).eps)
    error = _relative(every)
    if error is None:
        return None
    bits = -math.log2(float(error.square().mean().sqrt()) / _RMS)
    if not 2.5 <= bits <= own - 0.5:
        return None
    what = f"of all elements about {round(bits)} bits are right, of {round(own)}"
    return PRECISION, f"{what}: they are those farthest off"


def _relative(errors: Errors) -> torch.Tensor | None:
    """[wrong] errors as shares of what is expected, of its scale, or of its row's mean square.

    None where a few are far greater than the rest: that is no rounding.
    """
    got, want = errors.pair
    by_element = (got - want) / want.abs()
    finite = torch.where(errors.want.isfinite(), errors.want, 0.0)
    rows = finite.square().mean(-1, keepdim=True).sqrt().expand_as(errors.want)
    by_row = (got - want) / rows[errors.mask]
    shares = [(by_element, 4.0), (by_row, 6.0)]
    if errors.scale is not None:
        shares.insert(1, ((got - want) / errors.scale[errors.mask], 6.0))
    for error, times in shares:
        rms = float(error.square().mean().sqrt())
        if 0 < rms < math.inf and float(error.abs().max()) < times * rms:
            return error
    return None


def _rows(errors: Errors) -> list[Errors]:
    """The errors of each row that has any; none where one has too few, or there are too many."""
    if errors.want.dim() < 2:
        return []
    width = errors.want.shape[-1]
    masks = errors.mask.reshape(-1, width)
    numbers = masks.any(1).nonzero().flatten().tolist()
    if len(numbers) > 256 or bool((masks[numbers].sum(1) < _FEW).any()):
        return []
    flat = [t.reshape(-1, width) for t in (errors.got, errors.want, errors.budget)]
    return [
        replace(
            errors,
            got=flat[0][i],
            want=flat[1][i],
            budget=flat[2][i],
            mask=masks[i],
            before=None,
            scale=None,
        )
        for i in numbers
    ]


def _slope(got: torch.Tensor, want: torch.Tensor) -> float:
    """The factor that turns one into the other with the least squares: [n], [n]."""
    below = float((want * want).sum())
    return float((got * want).sum()) / below if below else math.nan
