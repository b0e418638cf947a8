"""Offsets that wrap around are found, with a boundary that this test can hold."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.ops import generic
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules import l2_offsets

pytestmark = pytest.mark.null

ENTRY = {"support": "full", "dtypes": ["float32", "float16"], "run": "acme:kernel"}
RAW = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Acme", "arch": "a1"},
    "operators": {op: ENTRY for op in l2_offsets.OPS},  # noqa: C420 - one each
}
WRAP = 2**18


class Bench:
    """A bench of the host, whose kernels are this test's."""

    device = torch.device("cpu")
    opened = SimpleNamespace(record=SimpleNamespace(index=0))

    def __init__(self, kernels, free=1 << 40):
        self.kernels = kernels
        self.target = Target(None, None, parse_capability(RAW, "acme.json"), None, seed=4)
        capacity = SimpleNamespace(free_bytes=free)
        self.runtime = SimpleNamespace(query_memory_capacity=lambda index: capacity)

    def to_device(self, tensor):
        return tensor.clone()

    def bind(self, op, facts, owner=None):
        run = self.kernels[op]
        return SimpleNamespace(run=run, plan=lambda step: None, handle=0)

    def observe(self, look, **given):
        return look(self, **given)


@pytest.fixture(autouse=True)
def near(monkeypatch):
    monkeypatch.setattr(l2_offsets, "BEHIND", WRAP)


def embedding(ids, weight):
    return weight[ids]


def wrapped_embedding(ids, weight):
    width = weight.shape[1]
    return weight[ids * width % WRAP // width]


def paged(*args):
    return generic.paged_attention(*args[:-1], None)


def wrapped_paged(query, keys, values, table, *rest):
    blocks = WRAP // keys[0].numel()
    return paged(query, keys, values, table % blocks, *rest)


def wrapped_store(key, value, key_cache, value_cache, slots):
    width = key_cache[0, 0].numel()
    generic.reshape_and_cache(key, value, key_cache, value_cache, slots * width % WRAP // width)


RIGHT = {
    "embedding": embedding,
    "reshape_and_cache": generic.reshape_and_cache,
    "paged_attention": paged,
}
WRAPPED = {
    "embedding": wrapped_embedding,
    "reshape_and_cache": wrapped_store,
    "paged_attention": wrapped_paged,
}


def case_of(bench, op):
    return next(case for case in l2_offsets._cases(bench.target) if case.params["op"] == op)


@pytest.mark.parametrize("op", l2_offsets.OPS)
def test_right_kernels_pass_and_offsets_that_wrap_do_not(op):
    bench = Bench(RIGHT)
    case = case_of(bench, op)
    assert case.id == f"{op}-float16"
    seen = l2_offsets.check(bench, case)
    assert seen.note == "visited" and seen.share <= 1
    with pytest.raises(Failure, match=f"behind {WRAP} elements as before them"):
        l2_offsets.check(Bench(WRAPPED), case)


@pytest.mark.parametrize("op", l2_offsets.OPS)
def test_what_does_not_fit_is_told_and_not_run(op):
    bench = Bench({}, free=1 << 10)
    seen = l2_offsets.check(bench, case_of(bench, op))
    assert seen.note.startswith("not visited: it takes ") and seen.share is None
