"""Blocks and their placement under churn: none lost, none shared, little waste, even domains."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.engine.kv_cache.blocks import BlockPool, BlockTable
from vllm_adapter.engine.kv_cache.placement import by_domain, striped
from vllm_adapter.errors import InputError, OutOfMemory

pytestmark = pytest.mark.null

CHURN = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 90)), max_size=60)
DOMAINS = st.integers(1, 5).flatmap(
    lambda count: st.lists(st.integers(1, 4), min_size=count, max_size=count)
)


def numbered(sizes: list[int]) -> list[list[int]]:
    numbers = iter(range(sum(sizes)))
    return [[next(numbers) for _ in range(size)] for size in sizes]


@settings(max_examples=60)
@given(CHURN, st.integers(1, 40), st.integers(1, 16))
def test_churn_loses_no_block_shares_none_and_wastes_less_than_one_a_sequence(churn, count, block):
    """(sequence, tokens): so many are appended; 0 ends the sequence and gives its blocks back."""
    pool, tables = BlockPool(count), {}
    for name, tokens in churn:
        table = tables.setdefault(name, BlockTable(block, []))
        if not tokens:
            pool.give_back(table.blocks)
            del tables[name]
            continue
        before = (list(table.blocks), table.length, pool.free)
        try:
            table.append(tokens, pool.take(table.missing(tokens)))
        except OutOfMemory:
            assert (table.blocks, table.length, pool.free) == before
        held = [number for one in tables.values() for number in one.blocks]
        assert len(held) == len(set(held)) == count - pool.free
        assert all(0 <= number < count for number in held)
        for one in tables.values():
            assert 0 <= len(one.blocks) * block - one.length < block
    # any sequence may have all that is free, whatever was given back in which order
    rest = pool.take(pool.free)
    held = [number for one in tables.values() for number in one.blocks]
    assert sorted(rest + held) == list(range(count))


@settings(max_examples=60)
@given(st.integers(1, 90), DOMAINS, st.lists(st.integers(0, 500), max_size=50))
def test_every_layer_lies_in_one_domain_and_all_domains_have_their_share(layers, sizes, blocks):
    domains = numbered(sizes)
    if layers < len(domains):
        with pytest.raises(InputError, match="cannot be dealt out"):
            by_domain(layers, domains)
        return
    placed = by_domain(layers, domains)
    where = [next(i for i, d in enumerate(domains) if home[0] in d) for home in placed.homes]
    assert all(len(home) == 1 for home in placed.homes)
    assert where == sorted(where), "activations pass each border once"
    counts = [where.count(i) for i in range(len(domains))]
    assert max(counts) - min(counts) <= 1
    for layer in range(layers):
        assert placed.crossing(layer, blocks) == []
        scattered = striped(layers, domains)
        away = [b for b in blocks if scattered.device_of(layer, b) != scattered.compute[layer]]
        assert scattered.crossing(layer, blocks) == away


@pytest.mark.parametrize("domains", [[], [[]], [[0], []], [[0, 1], [1]]])
def test_domains_that_are_none_are_refused(domains):
    with pytest.raises(InputError, match="do not hold each device once"):
        by_domain(8, domains)
