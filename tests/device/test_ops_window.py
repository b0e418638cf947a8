"""Core's own paged attention: right for every window, and blind to what no query sees."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from vllm_adapter.engine.ops import generic
from vllm_adapter.engine.ops.step import make_step

pytestmark = pytest.mark.device

HEADS, KV_HEADS, SIZE = 4, 2, 8
SCALE = SIZE**-0.5

sequences = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=4).map(
    lambda pairs: [(new, new + before) for new, before in pairs]
)
"""New tokens and context of each sequence: prefill, decode and both at once."""
windows = st.one_of(st.just(0), st.integers(1, 50))


def batch(lengths, block_size, window):
    """A step over blocks in no order, caches with NaN wherever no query looks, and the truth."""
    queries, contexts = zip(*lengths, strict=True)
    counts = [-(-context // block_size) for context in contexts]
    numbers = iter((torch.randperm(sum(counts) + 1) + 1).tolist())
    table = [[next(numbers) for _ in range(count)] for count in counts]
    step = make_step(queries, contexts, table, block_size)
    query = torch.randn(sum(queries), HEADS, SIZE)
    caches = torch.full((2, sum(counts) + 2, block_size, KV_HEADS, SIZE), torch.nan)
    flat = caches.flatten(1, 2)
    rows = []
    for (new, context), blocks in zip(lengths, table, strict=True):
        slots = [blocks[p // block_size] * block_size + p % block_size for p in range(context)]
        for place in range(context - new, context):
            seen = slots[max(0, place - window + 1) if window else 0 : place + 1]
            unset = [slot for slot in seen if flat[0, slot].isnan().any()]
            flat[:, unset] = torch.randn(2, len(unset), KV_HEADS, SIZE)
            rows.append(seen)
    return step, query, caches, rows


def attended(query, caches, rows, soft_cap):
    """One query at a time, in float64, over the slots that it sees."""
    out = torch.empty(query.shape, dtype=torch.float64)
    keys, values = (cache.flatten(0, 1).double() for cache in caches)
    for i, seen in enumerate(rows):
        for head in range(HEADS):
            kv = head // (HEADS // KV_HEADS)
            scores = keys[seen, kv] @ query[i, head].double() * SCALE
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            out[i, head] = scores.softmax(0) @ values[seen, kv]
    return out


def tables(step):
    return step.block_table, step.seq_lens, step.query_start_loc


def close(found, want):
    torch.testing.assert_close(found.double(), want, atol=2e-5, rtol=2e-5)


@given(sequences, st.sampled_from([1, 4, 16]), windows, st.sampled_from([0.0, 3.0]))
@example([(1, 40), (3, 3), (4, 30), (0, 20)], 16, 7, 0.0)
@example([(1, 33)], 16, 1, 0.0)
def test_paged_attention_reads_what_its_queries_see_and_no_more(
    lengths, block_size, window, soft_cap
):
    step, query, caches, rows = batch(lengths, block_size, window)
    options = (*caches, *tables(step), SCALE, window, soft_cap)
    want = attended(query, caches, rows, soft_cap)
    close(generic.paged_attention(query, *options, None), want)
    planned = generic.plan_paged_attention(step, None)
    close(generic.paged_attention(query, *options, planned), want)


@pytest.mark.parametrize("window", [0, 1, 7, 50])
@pytest.mark.parametrize("soft_cap", [0.0, 3.0])
def test_queries_that_are_attended_a_few_at_a_time_see_the_same(monkeypatch, window, soft_cap):
    torch.manual_seed(0)
    step, query, caches, rows = batch([(20, 20), (9, 40), (13, 14), (1, 33)], 16, window)
    options = (*caches, *tables(step), SCALE, window, soft_cap, None)
    want = attended(query, caches, rows, soft_cap)
    module = sys.modules[generic.paged_attention.__module__]
    shapes = []
    theirs = module._softmax_of_scores
    monkeypatch.setattr(module, "QUERIES", 4)
    monkeypatch.setattr(
        module,
        "_softmax_of_scores",
        lambda *given, **named: shapes.append(given[0].shape) or theirs(*given, **named),
    )
    close(generic.paged_attention(query, *options), want)
    most = max(shape[2] for shape in shapes)
    # Without a window and a cap torch's own causal attention takes a whole prompt, unmasked.
    assert most == (20 if not (window or soft_cap) else 4)


@given(
    st.lists(st.integers(1, 45), min_size=1, max_size=5),
    st.sampled_from([1, 4, 16]),
    windows,
    st.sampled_from([0.0, 3.0]),
    st.booleans(),
)
@example([33, 33], 16, 20, 0.0, False)
@example([1, 45, 20], 16, 20, 0.0, False)
def test_paged_decode_reads_what_its_queries_see_and_no_more(
    contexts, block_size, window, soft_cap, joined
):
    step, query, caches, rows = batch([(1, c) for c in contexts], block_size, window)
    if joined:  # as vLLM does: keys and values of a block behind each other
        caches = caches.transpose(0, 1).contiguous().unbind(1)
    state = generic.plan_paged_decode(step, None)
    found = generic.paged_decode(query, *caches, *tables(step), SCALE, window, soft_cap, state)
    close(found, attended(query, caches, rows, soft_cap))


def test_one_plan_serves_layers_of_every_window():
    """Layers of one model differ in their windows, and share a step."""
    contexts = [5, 37, 20]
    state = None
    for window in (0, 1, 8, 36, 37, 64):
        torch.manual_seed(0)
        step, query, caches, rows = batch([(1, c) for c in contexts], 16, window)
        state = state or generic.plan_paged_decode(step, None)
        found = generic.paged_decode(query, *caches, *tables(step), SCALE, window, 0.0, state)
        close(found, attended(query, caches, rows, 0.0))
