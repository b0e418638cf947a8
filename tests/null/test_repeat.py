"""Thousands of calls and calls of two threads: what is wrong now and then is found."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import pytest
import torch

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules import l2_repeat

pytestmark = pytest.mark.null

ENTRY = {"support": "full", "dtypes": ["float32"], "run": "acme:kernel"}


class Bench:
    """A bench whose only kernel is a function of this test."""

    device = torch.device("cpu")

    def __init__(self, op, kernel, deterministic=True):
        raw = {
            "schema": "vllm-adapter/capability/1.0",
            "identity": {"vendor": "Acme", "arch": "a1"},
            "numerics": {
                "deterministic": deterministic,
                "source": {"kind": "measured", "reference": "here"},
            },
            "operators": {op: ENTRY},
        }
        self.kernel = kernel
        self.target = Target(None, None, parse_capability(raw, "acme.json"), None, seed=4)

    def to_device(self, tensor):
        return tensor.clone()

    def bind(self, op, facts, owner=None):
        return SimpleNamespace(run=self.kernel, prepare_weights=lambda w: w, handle=0)

    def observe(self, look, **given):
        return look(self, **given)


def checked(check, cases, op, kernel, deterministic=True):
    bench = Bench(op, kernel, deterministic)
    (case,) = (case for case in cases(bench.target) if case.id == op)
    return check(bench, case)


def many(kernel, deterministic=True, op="silu_and_mul"):
    return checked(l2_repeat.check_many, l2_repeat._many, op, kernel, deterministic)


def threads(kernel, op="silu_and_mul"):
    return checked(l2_repeat.check_threads, l2_repeat._threaded, op, kernel)


def silu(x):
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def counted(change):
    """silu whose result `change` may alter, by the number of the call."""
    calls = iter(range(10**6))
    return lambda x: change(next(calls), silu(x))


def test_a_right_kernel_passes():
    seen = many(silu)
    assert 0 < seen.share <= 1 and seen.note == "2000 calls"
    assert 0 < threads(silu).share <= 1


def test_one_call_of_a_thousand_is_found():
    with pytest.raises(Failure, match="call 999 of 2000"):
        many(counted(lambda n, found: found * 0 if n % 1000 == 999 else found))


def test_a_last_bit_is_rounding_only_where_that_is_declared():
    def kernel():
        return counted(lambda n, found: found * (1 + 2e-7) if n == 700 else found)

    with pytest.raises(Failure, match=r"equal bits.*call 700 of 2000 differs from call 0"):
        many(kernel())
    assert many(kernel(), deterministic=False).share <= 1


def test_what_is_not_deterministic_is_right_all_the_same():
    dice = random.Random(3)
    with pytest.raises(Failure, match="within its error budget, in call"):
        many(
            counted(lambda n, found: found * (1.1 if dice.random() < 0.01 else 1)),
            deterministic=False,
        )


@pytest.mark.parametrize("length", [4, 7, 20, 64])
def test_a_result_that_a_later_call_overwrites_is_found(length):
    ring = []

    def kernel(x):
        found = silu(x)
        if len(ring) == length:
            ring.append(ring.pop(0))
            return ring[-1].copy_(found)
        ring.append(found)
        return found

    with pytest.raises(Failure, match=r"what call \d+ of 2000 gave, read after the last call"):
        many(kernel)


def test_what_the_first_of_two_inputs_left_is_found():
    kept = {}

    def kernel(x):
        return silu(kept.setdefault(x.shape, x))

    with pytest.raises(Failure, match="within its error budget"):
        many(kernel)


def test_written_arguments_are_judged():
    def kernel(key, value, key_cache, value_cache, slots):
        block = key_cache.shape[1]
        real = slots >= 0
        for new, cache in ((key, key_cache), (key, value_cache)):  # values are keys
            cache[slots[real] // block, slots[real] % block] = new[real]

    with pytest.raises(Failure, match="output 1 within"):
        many(kernel, op="reshape_and_cache")


def test_scratch_that_threads_share_is_found():
    scratch = {}

    def kernel(x):
        room = scratch.setdefault(x.shape, torch.empty_like(x))
        return silu(room.copy_(x))

    assert many(kernel).share <= 1
    with pytest.raises(Failure, match="of one of two threads"):
        threads(kernel)


def test_a_case_of_each_declared_operator():
    target = Bench("gelu", None).target
    assert [case.id for case in l2_repeat._many(target)] == ["gelu"]
    (case,) = l2_repeat._threaded(target)
    assert case.params["facts"]["hidden"] == 2048
    assert not [*l2_repeat._many(dataclasses.replace(target, capability=None))]
