"""The error budget: not so wide that nothing fails, not so narrow that plain torch does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from zoo import descriptor, failed, run_rules, target_of

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.ops.tolerance import FACTOR, compare
from vllm_adapter_conformance.ops.trial import Expected

pytestmark = pytest.mark.device

COPIES = {"reshape_and_cache", "embedding"}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SPECIAL = (math.nan, math.inf, -math.inf)
finite = st.floats(-1e4, 1e4, width=16)


def one(value, magnitude=1.0):
    return Expected(torch.tensor([value]).double(), torch.tensor([magnitude]).double())


def share(got, want, dtype=torch.float32, terms=1):
    return compare(torch.tensor([got], dtype=dtype), want, terms).share


@pytest.mark.parametrize("op", [op for op in OPERATORS if op not in COPIES])
def test_plain_torch_uses_a_fair_part_of_the_budget(op, tmp_path):
    rule = f"L2.{op}.correct"
    results = run_rules(target_of("healthy", descriptor({}), tmp_path), rule)[rule]
    assert not failed(results)
    for dtype in DTYPES:
        mine = [r.share for r in results if f"[{dtype}" in r.item]
        # The worst of millions of elements: a sum's error of 0.1 on average is 0.6 somewhere.
        assert 0.01 <= max(mine) <= 0.75, f"{op} {dtype}: {max(mine):.3f}"


def test_the_factor_is_small():
    assert 0 < FACTOR <= 8


@given(finite, st.sampled_from(SPECIAL), st.sampled_from(FLOATS))
def test_what_is_no_number_on_one_side_only_is_infinitely_wrong(value, special, dtype):
    assert share(special, one(value), dtype) == math.inf
    assert share(value, one(special), dtype) == math.inf


@given(st.sampled_from(SPECIAL), st.sampled_from(SPECIAL), st.sampled_from(FLOATS))
def test_what_is_no_number_on_both_sides_must_be_the_same(got, want, dtype):
    same = got == want or (math.isnan(got) and math.isnan(want))
    assert share(got, one(want), dtype) == (0.0 if same else math.inf)


@given(st.floats(1.0, 2.0), st.sampled_from((1.0, -1.0)), st.sampled_from(FLOATS[:3]))
def test_what_the_dtype_cannot_hold_is_infinite_with_its_sign(above, sign, dtype):
    """A right kernel's result is: a sum of a few large products in float16."""
    most = torch.finfo(dtype).max
    value = torch.tensor([sign * most * above], dtype=torch.float64)
    want = Expected(value, value.abs())
    assert share(sign * math.inf, want, dtype) == 0.0
    assert share(-sign * math.inf, want, dtype) == math.inf
    assert share(sign * math.inf, Expected(value / 4, value.abs() / 4), dtype) == math.inf
    assert share(sign * math.inf, Expected(value, torch.zeros(1).double()), dtype) == math.inf


@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(FLOATS),
)
def test_another_shape_is_infinitely_wrong_though_it_broadcasts(got, want, dtype):
    expected = Expected(torch.zeros(want, dtype=torch.float64), torch.ones(want).double())
    seen = compare(torch.zeros(got, dtype=dtype), expected, 1)
    assert seen.share == (0.0 if got == want else math.inf)


@given(st.floats(1e-9, 1e3), st.integers(1, 10_000), st.sampled_from(FLOATS[2:]))
def test_twice_the_error_is_twice_the_share(error, terms, dtype):
    error = float(torch.tensor(error, dtype=dtype))
    single, double = (share(factor * error, one(0.0), dtype, terms) for factor in (1, 2))
    assert single > 0
    assert double == pytest.approx(2 * single, rel=1e-12)
    assert share(-error, one(0.0), dtype, terms) == single


@given(finite, st.sampled_from(FLOATS))
def test_a_copy_has_no_budget(value, dtype):
    near = torch.nextafter(torch.tensor(value, dtype=torch.float32), torch.tensor(math.inf))
    assert share(value, one(value, 0.0), torch.float32) == 0
    assert share(float(near), one(value, 0.0), torch.float32) == math.inf
    assert share(value, one(float(torch.tensor(value, dtype=dtype)), 0.0), dtype) == 0


def test_the_worst_element_is_named():
    want = Expected(torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 3).double())
    got = torch.zeros(2, 3)
    got[1, 2], got[0, 1] = 0.5, 0.25
    seen = compare(got, want, 1)
    assert (seen.index, seen.got, seen.want) == ((1, 2), 0.5, 0.0)
