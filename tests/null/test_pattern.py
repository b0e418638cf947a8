"""What a wrong result looks like, in words. The table was written before `ops/pattern.py`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter_conformance.ops.pattern import describe

pytestmark = pytest.mark.null

HEADS = ("token", "head", "column")
CACHE = ("block", "slot", "head", "column")


def values(*shape: int, seed: int = 5) -> torch.Tensor:
    """float64 [shape] that float32 holds, none of them near zero."""
    draw = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (draw + 0.05 * draw.sign()).double()


def budget_of(want: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return 4 * torch.finfo(dtype).eps * want.abs() + torch.finfo(dtype).smallest_normal


ROWS = values(10, 64)
"""[rows, columns]."""
PACKED = values(6, 4, 16)
"""[tokens, heads, columns]."""


def put(where: Any, value: Any, base: torch.Tensor = ROWS) -> torch.Tensor:
    """A copy of the base with something in one place."""
    found = base.clone()
    found[where] = value
    return found


def wrong(where: Any, base: torch.Tensor = ROWS) -> torch.Tensor:
    """A copy of the base with noise in one place, that nothing explains."""
    noise = torch.randn(base.shape, generator=torch.Generator().manual_seed(9)).double()
    return put(where, (3 * noise + 0.3)[where], base)


def cut(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Values of float64 with `bits` bits, the others cut off."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa * 2**bits).trunc() / 2**bits, exponent)


def noisy(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Values with an even relative error of that many bits."""
    noise = torch.rand(values.shape, generator=torch.Generator().manual_seed(3)).double()
    return values * (1 + (2 * noise - 1) * 2.0**-bits)


def columns(order: list[int], base: torch.Tensor = ROWS) -> torch.Tensor:
    return base[..., order]


SQUARE = values(12, 12)
LARGE = values(4, 32) * 1000
DENORMAL = put((slice(None), slice(0, 5)), 1e-40, ROWS)
WITH_NAN = put((2, 7), math.nan)
WITH_INF = put((2, 7), math.inf)
HALVES = [*range(32, 64), *range(32)]
PAIRS = [i ^ 1 for i in range(64)]

KINDS: dict[str, tuple[torch.Tensor, torch.Tensor, dict[str, Any], tuple[str, ...]]] = {
    # name: got, want, what else is known, phrases that the sentences must have
    # How many, and where.
    "one element": (
        wrong((3, 5)),
        ROWS,
        {},
        ("1 of 640 elements is wrong", "at [3, 5]"),
    ),
    "one row": (wrong(3), ROWS, {}, ("64 of 640 elements are wrong", "in row 3")),
    "the last row": (wrong(9), ROWS, {}, ("in the last row (9)",)),
    "the first row": (wrong(0), ROWS, {}, ("in row 0",)),
    "a run of rows": (wrong(slice(4, 8)), ROWS, {}, ("in rows 4 to 7",)),
    "some rows": (wrong([0, 2, 5]), ROWS, {}, ("in rows 0, 2 and 5",)),
    "odd rows": (wrong(slice(1, None, 2)), ROWS, {}, ("in every 2nd row, from 1 on",)),
    "tail of rows": (wrong(slice(6, None)), ROWS, {}, ("in the tail: rows from 6 on",)),
    "one column": (wrong((slice(None), 5)), ROWS, {}, ("in column 5",)),
    "tail of columns": (
        wrong((slice(None), slice(48, None))),
        ROWS,
        {},
        ("160 of 640 elements are wrong", "in the tail: columns from 48 on"),
    ),
    "the last column": (
        wrong((slice(None), 63)),
        ROWS,
        {},
        ("in the last column (63)",),
    ),
    "every 4th column": (
        wrong((slice(None), slice(3, None, 4))),
        ROWS,
        {},
        ("in every 4th column, from 3 on",),
    ),
    "a corner": (
        wrong((slice(2, 4), slice(0, 16))),
        ROWS,
        {},
        ("in rows 2 to 3", "columns 0 to 15"),
    ),
    "all": (wrong(slice(None)), ROWS, {}, ("all 640 elements are wrong",)),
    "one head": (
        wrong((slice(None), 2), PACKED),
        PACKED,
        {"axes": HEADS},
        ("96 of 384 elements are wrong", "in head 2"),
    ),
    "one token": (wrong(4, PACKED), PACKED, {"axes": HEADS}, ("in token 4",)),
    "one head of one token": (
        wrong((4, 1), PACKED),
        PACKED,
        {"axes": HEADS},
        ("in token 4, head 1",),
    ),
    "tail of tokens": (
        wrong(slice(2, None), PACKED),
        PACKED,
        {"axes": HEADS},
        ("in the tail: tokens from 2 on",),
    ),
    "odd heads": (
        wrong((slice(None), slice(1, None, 2)), PACKED),
        PACKED,
        {"axes": HEADS},
        ("in every 2nd head, from 1 on",),
    ),
    "slots of a cache": (
        wrong((slice(None), 3), values(5, 8, 2, 4)),
        values(5, 8, 2, 4),
        {"axes": CACHE},
        ("in slot 3",),
    ),
    "three leading dimensions are rows": (
        wrong((1, 2), values(3, 4, 8)),
        values(3, 4, 8),
        {},
        ("8 of 96 elements are wrong", "in row 6"),
    ),
    "a vector": (wrong(slice(7, None), values(20)), values(20), {}, ("elements from 7 on",)),
    # What stands there.
    "zeros": (put(3, 0.0), ROWS, {}, ("in row 3", "they are zeros")),
    "all zeros": (
        ROWS * 0,
        ROWS,
        {},
        ("all 640 elements are wrong", "they are zeros"),
    ),
    "NaN": (put((slice(None), 5), math.nan), ROWS, {}, ("in column 5", "they are NaN")),
    "infinite": (put(2, math.inf), ROWS, {}, ("in row 2", "they are infinite")),
    "not written": (
        put((slice(None), 2), values(5, 8, 2, 4, seed=8)[:, 2], values(5, 8, 2, 4)),
        values(5, 8, 2, 4),
        {"axes": CACHE, "before": values(5, 8, 2, 4, seed=8)},
        ("in slot 2", "they are what was there before"),
    ),
    "one constant": (put(slice(1, 3), 7.5), ROWS, {}, ("they are all 7.5",)),
    "a hidden NaN": (ROWS, WITH_NAN, {}, ("numbers where NaN is expected",)),
    "a hidden infinity": (ROWS, WITH_INF, {}, ("numbers where infinity is expected",)),
    "denormals flushed": (
        put((slice(None), slice(0, 5)), 0.0),
        DENORMAL,
        {"budget": torch.full_like(ROWS, 1e-45)},
        ("denormal numbers became zero",),
    ),
    "another row's": (put(3, ROWS[5]), ROWS, {}, ("row 3 holds the values of row 5",)),
    "the next row's": (
        torch.cat((ROWS[1:], ROWS[-1:])),
        ROWS,
        {},
        ("each row holds the values of the next row",),
    ),
    "the row before": (
        torch.cat((ROWS[:1], ROWS[:-1])),
        ROWS,
        {},
        ("each row holds the values of the row before",),
    ),
    "row 0 everywhere": (ROWS[:1].expand(10, 64).clone(), ROWS, {}, ("all hold row 0's values",)),
    "rows mixed up": (
        ROWS[[3, 0, 4, 1, 9, 8, 2, 5, 7, 6]],
        ROWS,
        {},
        ("each row holds the values of another row",),
    ),
    "another head's": (
        put((slice(None), 3), PACKED[:, 1], PACKED),
        PACKED,
        {"axes": HEADS},
        ("head 3 holds the values of head 1",),
    ),
    "another token's": (
        put(5, PACKED[0], PACKED),
        PACKED,
        {"axes": HEADS},
        ("token 5 holds the values of token 0",),
    ),
    "columns shifted": (
        columns([63, *range(63)]),
        ROWS,
        {},
        ("each column holds the values of the column before",),
    ),
    "halves swapped": (columns(HALVES), ROWS, {}, ("the halves of each row are swapped",)),
    "neighbours swapped": (columns(PAIRS), ROWS, {}, ("neighbouring columns are swapped",)),
    "reversed": (ROWS.flip(1), ROWS, {}, ("the columns are in reverse order",)),
    "transposed": (SQUARE.T.clone(), SQUARE, {}, ("rows and columns are exchanged",)),
    "sign": (put(2, -ROWS[2]), ROWS, {}, ("in row 2", "the sign is flipped")),
    "lost sign": (ROWS.abs(), ROWS, {}, ("they lost their minus sign",)),
    "doubled": (ROWS * 2, ROWS, {}, ("they are 2 times what is expected",)),
    "a little too large": (
        ROWS * 1.0003,
        ROWS,
        {},
        ("they are 1.0003 times what is expected",),
    ),
    "each row scaled": (
        ROWS * torch.linspace(0.5, 2.3, 10).double()[:, None],
        ROWS,
        {},
        ("each row is off by a factor of its own, 0.5 to 2.3",),
    ),
    "more by a constant": (ROWS + 0.5, ROWS, {}, ("they are 0.5 more than expected",)),
    "less by a constant": (ROWS - 0.25, ROWS, {}, ("they are 0.25 less than expected",)),
    "each row moved": (
        ROWS + torch.linspace(1, 3, 10).double()[:, None],
        ROWS,
        {},
        ("each row is off by an amount of its own",),
    ),
    "clipped": (LARGE.clamp(-448, 448), LARGE, {}, ("they are clipped at 448",)),
    # How much is right.
    "rounded to bfloat16": (
        ROWS.bfloat16().double(),
        ROWS,
        {},
        ("they are rounded to bfloat16 (8 bits)",),
    ),
    "rounded to float16": (
        ROWS.half().double(),
        ROWS,
        {},
        ("they are rounded to float16 (11 bits)",),
    ),
    "rounded to float8": (
        ROWS.float().to(torch.float8_e4m3fn).double(),
        ROWS,
        {},
        ("they are rounded to float8_e4m3fn (4 bits)",),
    ),
    "computed in bfloat16": (
        noisy(ROWS, 8),
        ROWS,
        {},
        ("about 8 bits are right, as if computed in bfloat16",),
    ),
    "computed in TF32": (
        noisy(ROWS, 11),
        ROWS,
        {},
        ("about 11 bits are right, as if computed in float16 or TF32",),
    ),
    "other bits": (noisy(ROWS, 15), ROWS, {}, ("about 15 bits are right",)),
    "cut off": (cut(ROWS, 12), ROWS, {}, ("cut off toward zero",)),
    "computed in bfloat16, in a tail": (
        torch.cat((ROWS[:, :48], noisy(ROWS, 8)[:, 48:]), 1),
        ROWS,
        {},
        ("in the tail: columns from 48 on", "as if computed in bfloat16"),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_corruption_has_its_sentence(name):
    got, want, known, phrases = KINDS[name]
    known = {"budget": budget_of(want)} | known
    found = describe(got.float(), want, **known)
    text = "; ".join(found.sentences)
    for phrase in phrases:
        assert phrase in text, text


def test_bits_of_a_sum_are_counted_by_its_terms():
    """A product whose inputs have 11 bits: small results and great columns have other errors."""
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(90, 64, generator=draw).double()
    weight = torch.randn(64, 50, generator=draw).double() * torch.logspace(-2, 2, 50).double()
    want, scale = x @ weight, (x.square() @ weight.square()).sqrt()
    got = (x.half().double() @ weight.half().double()).float()
    found = describe(got, want, 1e-6 * scale, scale=scale)
    assert "about 11 bits are right, as if computed in float16 or TF32" in found.sentences[1]
    assert found.cause == "precision"


def test_nothing_is_said_of_a_result_that_is_right():
    assert describe(ROWS.float(), ROWS, budget_of(ROWS)).sentences == ()


def test_noise_is_not_explained():
    found = describe(wrong(slice(None)).float(), ROWS, budget_of(ROWS))
    assert found.sentences == ("all 640 elements are wrong",)


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    share=st.floats(0, 1),
    kind=st.sampled_from(["noise", "nan", "inf", "zero", "scaled", "rounded"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_the_count_is_right_whatever_is_wrong(shape, seed, share, kind, dtype):
    want = values(*shape, seed=seed).to(dtype).double()
    draw = torch.Generator().manual_seed(seed + 1)
    mask = torch.rand(want.shape, generator=draw) < share
    other = {
        "noise": want + 1 + torch.rand(want.shape, generator=draw).double(),
        "nan": torch.full_like(want, math.nan),
        "inf": torch.full_like(want, math.inf),
        "zero": torch.zeros_like(want),
        "scaled": want * 3,
        "rounded": want * 1.25,
    }[kind]
    got = torch.where(mask, other, want).to(dtype)
    found = describe(got, want, budget_of(want, dtype))
    count = int(mask.sum())
    assert found.wrong == count and found.of == want.numel()
    assert bool(found.sentences) == bool(count)
    if count:
        first = found.sentences[0]
        every = count == want.numel() > 1
        said = f"all {count} elements" if every else f"{count} of {want.numel()}"
        assert said in first, first


@given(rows=st.integers(2, 20), width=st.integers(2, 70), data=st.data())
def test_a_single_row_is_named(rows, width, data):
    row = data.draw(st.integers(0, rows - 1))
    want = values(rows, width)
    found = describe(put(row, 0.0, want).float(), want, budget_of(want))
    text = "; ".join(found.sentences)
    name = f"in the last row ({row})" if row == rows - 1 else f"in row {row}"
    assert name in text and "zero" in text, text


@given(width=st.integers(4, 300), data=st.data())
def test_a_tail_is_named(width, data):
    first = data.draw(st.integers(1, width - 2))
    want = values(3, width)
    found = describe(wrong((slice(None), slice(first, None)), want).float(), want, budget_of(want))
    assert f"in the tail: columns from {first} on" in "; ".join(found.sentences)


@given(factor=st.floats(1.0005, 1000))
def test_a_factor_is_found(factor):
    found = describe((ROWS * factor).float(), ROWS, budget_of(ROWS))
    assert f"they are {factor:.5g} times what is expected" in "; ".join(found.sentences)


@given(bits=st.integers(3, 17), seed=st.integers(0, 50))
def test_bits_are_found_within_one(bits, seed):
    want = values(8, 100, seed=seed)
    text = "; ".join(describe(noisy(want, bits).float(), want, budget_of(want)).sentences)
    assert any(f"about {n} bits are right" in text for n in (bits - 1, bits, bits + 1)), text
