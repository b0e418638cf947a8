"""Choices of Triton's attention: none that does not fit, and one result whichever is taken."""

from __future__ import annotations

import pytest
import torch
import triton_device  # noqa: F401 # replaces the kernels by interpreted ones
from triton_device import DEVICE

from vllm_adapter import generic, make_step
from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.ops.tuning import TUNING
from vllm_adapter_triton import attention, tune


def chip(**execution):
    return parse_capability(
        {
            "schema": "vllm-adapter/capability/1.0",
            "identity": {"vendor": "Acme", "arch": "acme1"},
            "execution": {**execution, "source": {"kind": "assumed"}},
        },
        "acme1.json",
    )


@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("shared", [32 * 1024, 64 * 1024, 228 * 1024])
@pytest.mark.parametrize("subgroup", [16, 32, 64, 128])
def test_no_choice_is_beyond_the_chip(head_size, shared, subgroup):
    small = chip(subgroup_size=subgroup, shared_memory_bytes=shared)
    ask = torch.bfloat16, head_size, 4, 0
    found, every = [*tune.choices(small, *ask)], [*tune.choices(chip(), *ask)]
    assert all(one in every for one in found)
    for one in every:
        fits = one["warps"] * subgroup <= 1024
        # Queries, and a stage's keys and values, of two bytes an element.
        fits &= 2 * head_size * (16 + 2 * one["slots"] * one["stages"]) <= shared
        assert (one in found) == fits


def test_every_choice_gives_the_same_result():
    torch.manual_seed(1)
    step = make_step((1, 3, 1), (40, 3, 9), [[4, 1, 0], [2], [3]], 16, DEVICE)
    query = torch.randn(5, 4, 32).to(DEVICE)
    caches = [torch.randn(5, 16, 2, 32).to(DEVICE) for _ in range(2)]
    where = step.block_table, step.seq_lens, step.query_start_loc
    wanted = generic.paged_attention(query, *caches, *where, 0.2, 0, 0.0, None)
    for choice in ({}, {"slots": 32, "waves": 2}, {"rows": 32, "least": 64, "unknown": 3}):
        with TUNING.trying(choice):
            state = attention.plan_paged_attention(step, None)
            got = attention.paged_attention(query, *caches, *where, 0.2, 0, 0.0, state)
            if choice:
                taken = {launch.choice.slots for launch in state.launches}
                assert choice.get("slots", 0) in (0, *taken)
                assert "unknown" not in attention.Choice.__slots__
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
