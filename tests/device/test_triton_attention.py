"""Triton's paged attention against core's portable form in float64, by Triton's interpreter."""

from __future__ import annotations

import itertools

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from triton_device import DEVICE

from vllm_adapter import generic, make_step
from vllm_adapter_triton import attention

NO_SHRINK = (Phase.explicit, Phase.generate)
"""The interpreter is slow: shrinking would take minutes."""
HEADS = [(1, 1), (2, 3), (1, 7), (1, 16), (2, 4)]
"""KV heads and query heads of each."""


def case(data, dtype=torch.float32):
    """A step and its tensors; all slots that no query sees are NaN."""
    draw = data.draw
    kv_heads, group = draw(st.sampled_from(HEADS))
    head_size = draw(st.sampled_from([32, 64, 80, 128]))
    block = draw(st.sampled_from([8, 16, 24]))
    window = draw(st.sampled_from([0, 0, 1, 5, 20, 64]))
    cap = draw(st.sampled_from([0.0, 0.0, 5.0, 30.0]))
    contexts = draw(
        st.lists(st.sampled_from([1, 2, block, block + 1, 70, 131]), min_size=1, max_size=3)
    )
    queries = [draw(st.sampled_from([1, 1, c, (c + 1) // 2])) for c in contexts]
    blocks = [-(-c // block) for c in contexts]
    order = torch.randperm(sum(blocks) + 2, generator=_random(draw)).tolist()
    ends = [*itertools.accumulate(blocks)]
    table = [order[end - n : end] for end, n in zip(ends, blocks, strict=True)]
    step = make_step(tuple(queries), tuple(contexts), table, block, DEVICE)
    random = _random(draw)
    caches = [
        torch.randn(len(order), block, kv_heads, head_size, generator=random).to(dtype)
        for _ in range(2)
    ]
    query = torch.randn(sum(queries), kv_heads * group, head_size, generator=random).to(dtype)
    seen = torch.zeros(len(order) * block, dtype=torch.bool)
    for row, (context, length) in enumerate(zip(contexts, queries, strict=True)):
        first = max(0, context - length - window + 1) if window else 0
        for place in range(first, context):
            seen[table[row][place // block] * block + place % block] = True
    for cache in caches:
        cache.view(-1, kv_heads, head_size)[~seen] = torch.nan
    return step, query, caches, (head_size**-0.5, window, cap)


def _random(draw):
    return torch.Generator().manual_seed(draw(st.integers(0, 2**31)))


def call(step, query, caches, numbers):
    return (
        query.to(DEVICE),
        *(cache.to(DEVICE) for cache in caches),
        step.block_table,
        step.seq_lens,
        step.query_start_loc,
        *numbers,
    )


def wide(args):
    return [a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in args]


@given(st.data())
@settings(max_examples=6, phases=NO_SHRINK)
def test_planned_and_direct_equal_float64(data):
    args = call(*(made := case(data)))
    want = generic.paged_attention(*wide(args), None)
    state = attention.plan_paged_attention(made[0], None)
    for found in (attention.paged_attention(*args, state), attention.paged_attention(*args, None)):
        torch.testing.assert_close(found.double(), want, rtol=2e-5, atol=2e-5)


@given(st.data())
@settings(max_examples=4, phases=NO_SHRINK)
def test_float16_within_its_rounding(data):
    args = call(*case(data, torch.float16))
    want = generic.paged_attention(*wide(args), None)
    found = attention.paged_attention(*args, None)
    torch.testing.assert_close(found.double(), want, rtol=2e-3, atol=4e-3)


def test_a_later_step_of_as_many_sequences_uses_the_same_memory():
    """What a captured graph reads must stay where it is while contexts grow."""
    query = torch.randn(2, 4, 64, device=DEVICE)
    caches = [torch.randn(80, 8, 2, 64, device=DEVICE) for _ in range(2)]
    table = [list(range(40)), list(range(40, 80))]
    state, places = None, []
    for contexts in ((9, 1), (200, 10), (13, 320)):
        step = make_step((1, 1), contexts, table, 8, DEVICE)
        state = attention.plan_paged_attention(step, state)
        args = call(step, query, caches, (0.125, 0, 0.0))
        found = attention.paged_attention(*args, state)
        want = generic.paged_attention(*wide(args), None)
        torch.testing.assert_close(found.double(), want, rtol=2e-5, atol=2e-5)
        (launch,) = state.launches
        places.append([t.data_ptr() for t in (launch.items, launch.groups, launch.result)])
    assert places[0] == places[1] == places[2]


def test_caches_whose_last_dimension_is_not_dense():
    step = make_step((1, 3), (9, 12), [[0, 1], [2, 3]], 8, DEVICE)
    wide_caches = [torch.randn(4, 8, 2, 64, 2, device=DEVICE) for _ in range(2)]
    caches = [cache[..., 0] for cache in wide_caches]
    query = torch.randn(4, 4, 128, device=DEVICE)[..., ::2]
    args = (query, *caches, step.block_table, step.seq_lens, step.query_start_loc, 0.125, 0, 0.0)
    found = attention.paged_attention(*args, None)
    want = generic.paged_attention(*wide(args), None)
    torch.testing.assert_close(found.double(), want, rtol=2e-5, atol=2e-5)
