"""A softmax of nearly equal weights, summed one by one in float32, is within its budget."""

from __future__ import annotations

import pytest
import torch

from vllm_adapter_conformance.ops.tolerance import compare
from vllm_adapter_conformance.ops.trial import Expected
from vllm_adapter_conformance.ops.trials._attend import Masking, attend

pytestmark = pytest.mark.null

KEYS = 6000


def case(offset):
    """One query beside keys of which the first has the greatest score, by `offset`."""
    draw = torch.Generator().manual_seed(5)
    query = torch.ones(1, 1, 1, 2, dtype=torch.float64)
    keys = torch.zeros(1, KEYS, 1, 2, dtype=torch.float64)
    keys[:, 0] = offset / 2
    values = torch.randn(1, KEYS, 1, 2, generator=draw, dtype=torch.float64)
    return query, keys, values


def one_by_one(keys, values, dtype=torch.float32):
    weights = (keys.sum(-1) - keys.sum(-1).max()).to(dtype).exp().flatten()
    total = torch.zeros((), dtype=dtype)
    summed = torch.zeros(2, dtype=dtype)
    for weight, value in zip(weights, values[0, :, 0].to(dtype), strict=True):
        total, summed = total + weight, summed + weight * value
    return (summed / total).float().view(1, 1, 1, 2)


@pytest.mark.parametrize("offset", [0.0, 5e-5, 1.5e-4, 1e-3])
def test_a_sum_that_is_rounded_the_same_way_each_time_is_right(offset):
    query, keys, values = case(offset)
    want = Expected(*attend(query, keys, values, 1.0, Masking(False, 0, 0.0)))
    assert compare(one_by_one(keys, values), want, KEYS).share < 1
    assert compare(one_by_one(keys, values, torch.bfloat16), want, KEYS).share > 100


def test_a_key_too_few_is_still_wrong():
    query, keys, values = case(1.5e-4)
    want = Expected(*attend(query, keys, values, 1.0, Masking(False, 0, 0.0)))
    assert compare(one_by_one(keys[:, :-1], values[:, :-1]), want, KEYS).share > 10
