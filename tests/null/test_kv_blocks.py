"""KV blocks: their arithmetic, who owns them, and the memory behind them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from vllm_adapter.engine.kv_cache import BlockPool, BlockSize, BlockTable, PagedKVCache
from vllm_adapter.engine.runtime import FrameworkRuntime
from vllm_adapter.errors import AllocationFreed, OutOfMemory

pytestmark = pytest.mark.null
SIZE = BlockSize(layers=2, kv_heads=1, head_size=4, element_bytes=4, block_size=4)
COUNT = 8


def test_the_arithmetic_of_a_7b_class_model():
    size = BlockSize(layers=32, kv_heads=8, head_size=128, element_bytes=2, block_size=16)
    assert size.bytes_a_token_a_layer == 4 * 1024
    assert size.bytes_a_token == 128 * 1024
    assert size.bytes_a_block == 2 * 1024 * 1024
    assert [size.blocks_for(n) for n in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("length", "owned", "tokens", "missing"),
    [(0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 16, 1), (0, 0, 17, 2), (15, 1, 1, 0), (16, 1, 1, 1)],
)
def test_a_table_asks_for_a_block_when_the_last_is_full(length, owned, tokens, missing):
    assert BlockTable(16, list(range(owned)), length).missing(tokens) == missing


class Allocator(RuleBasedStateMachine):
    """A pool against a plain model of it: who owns which block."""

    owners = Bundle("owners")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(COUNT)
        self.owned = []

    @property
    def taken(self):
        return [block for blocks in self.owned for block in blocks]

    @rule(target=owners, wanted=st.integers(0, 6))
    def take(self, wanted):
        free = self.pool.free
        if wanted > free:
            with pytest.raises(OutOfMemory, match=f"needs {wanted} more blocks and has {free}"):
                self.pool.take(wanted)
            return []
        blocks = self.pool.take(wanted)
        assert len(blocks) == wanted
        self.owned.append(blocks)
        return blocks

    @rule(blocks=owners, order=st.randoms())
    def give_back(self, blocks, order):
        if not any(blocks is mine for mine in self.owned):
            if not set(blocks) <= set(self.taken):
                self.refused(blocks)
            return
        self.owned = [mine for mine in self.owned if mine is not blocks]
        order.shuffle(blocks)
        self.pool.give_back(blocks)

    @rule(stranger=st.integers(-3, 60))
    def give_back_a_block_that_nobody_took(self, stranger):
        if all(stranger not in blocks for blocks in self.owned):
            self.refused([*self.taken, stranger])

    @rule(blocks=owners)
    def give_back_a_block_twice_in_one_call(self, blocks):
        if blocks:
            self.refused([*blocks, blocks[0]])

    @rule(more=st.integers(0, 4))
    def grow(self, more):
        free = self.pool.free
        self.pool.grow(self.pool.count + more)
        assert self.pool.free == free + more

    def refused(self, blocks):
        free = self.pool.free
        with pytest.raises(ValueError, match="not all taken"):
            self.pool.give_back(blocks)
        assert self.pool.free == free

    @invariant()
    def no_block_has_two_owners_and_none_is_lost(self):
        taken = self.taken
        assert len(set(taken)) == len(taken)
        assert all(0 <= block < self.pool.count for block in taken)
        assert self.pool.free == self.pool.count - len(taken)


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(deadline=None)


class Rationed(FrameworkRuntime):
    """The CPU with so many allocations left."""

    def __init__(self, left):
        super().__init__("cpu")
        self.left = left
        self.sizes = []

    def allocate_memory(self, size, device_id, *, alignment=None):
        if not self.left:
            raise OutOfMemory("rationed", hint="none")
        self.left -= 1
        self.sizes.append(size)
        return super().allocate_memory(size, device_id, alignment=alignment)


def make(blocks=2, left=1000, max_blocks=None):
    runtime = Rationed(left)
    cache = PagedKVCache(runtime, 0, SIZE, torch.float32, blocks=blocks, max_blocks=max_blocks)
    return runtime, cache


def mark(cache):
    """Writes a number of its own into every element of the cache, and gives copies."""
    for i, tensor in enumerate(tensor for pair in cache.layers for tensor in pair):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 1000 * i)
    return [tensor.clone() for pair in cache.layers for tensor in pair]


def test_the_memory_is_what_the_arithmetic_says():
    runtime, cache = make(blocks=3)
    assert sum(runtime.sizes) == 3 * SIZE.bytes_a_block
    assert [tuple(t.shape) for t in cache.layers[0]] == [(3, 4, 1, 4)] * 2
    assert runtime.memory_stats(0).live_allocations == SIZE.layers


def test_advance_fills_slots_in_the_order_of_the_blocks():
    _, cache = make(blocks=4)
    first, second = cache.new_sequence(), cache.new_sequence()
    step = cache.advance([first, second], [5, 3])
    assert (first.length, second.length) == (5, 3)
    assert (step.context_lens, step.phase) == ((5, 3), "prefill")
    step = cache.advance([first, second], [1, 1])
    blocks = [first.blocks[1], second.blocks[0]]
    assert step.slot_mapping.tolist() == [blocks[0] * 4 + 1, blocks[1] * 4 + 3]
    assert (step.phase, step.positions.tolist()) == ("decode", [5, 3])


def test_no_two_live_tokens_share_a_slot():
    _, cache = make(blocks=1)
    sequences = [cache.new_sequence() for _ in range(3)]
    slots = []
    for tokens in ([4, 5, 0], [1, 1, 1], [0, 7, 4]):
        slots += cache.advance(sequences, tokens).slot_mapping.tolist()
    assert len(set(slots)) == len(slots) == 23


def test_growth_doubles_and_keeps_the_contents():
    runtime, cache = make(blocks=2)
    sequence = cache.new_sequence()
    cache.advance([sequence], [8])
    blocks, before = list(sequence.blocks), mark(cache)
    cache.advance([sequence], [1])
    assert (cache.pool.count, sequence.blocks[:2]) == (4, blocks)
    after = [tensor for pair in cache.layers for tensor in pair]
    assert all(torch.equal(new[:2], old) for new, old in zip(after, before, strict=True))
    assert runtime.memory_stats(0).allocated_bytes == 4 * SIZE.bytes_a_block


def test_max_blocks_bounds_the_growth_and_a_refusal_changes_no_sequence():
    _, cache = make(blocks=2, max_blocks=3)
    one, two = cache.new_sequence(), cache.new_sequence()
    cache.advance([one, two], [4, 4])
    with pytest.raises(OutOfMemory, match="needs 2 more blocks"):
        cache.advance([one, two], [1, 1])
    assert [(s.length, len(s.blocks)) for s in (one, two)] == [(4, 1)] * 2
    cache.advance([one], [1])
    assert (cache.pool.count, cache.pool.free) == (3, 0)


def test_where_the_device_cannot_double_it_grows_by_what_is_missing():
    class Small(FrameworkRuntime):
        def allocate_memory(self, size, device_id, *, alignment=None):
            if size > 5 * SIZE.bytes_a_block // SIZE.layers:
                raise OutOfMemory("too large", hint="none")
            return super().allocate_memory(size, device_id, alignment=alignment)

    cache = PagedKVCache(Small("cpu"), 0, SIZE, torch.float32, blocks=4)
    sequence = cache.new_sequence()
    cache.advance([sequence], [17])
    assert (cache.pool.count, sequence.length) == (5, 17)


@pytest.mark.parametrize("left", [0, 1])
def test_a_device_that_is_full_during_growth_leaves_the_cache_as_it_was(left):
    runtime, cache = make(blocks=2)
    sequence = cache.new_sequence()
    cache.advance([sequence], [7])
    before, runtime.left = mark(cache), left
    with pytest.raises(OutOfMemory):
        cache.advance([sequence], [9])
    assert (sequence.length, cache.pool.count, cache.pool.free) == (7, 2, 0)
    assert runtime.memory_stats(0).live_allocations == SIZE.layers
    after = [tensor for pair in cache.layers for tensor in pair]
    assert all(torch.equal(new, old) for new, old in zip(after, before, strict=True))
    cache.advance([sequence], [1])
    runtime.left = 1000
    cache.advance([sequence], [9])
    assert sequence.length == 17


def test_a_device_that_is_full_at_first_keeps_nothing():
    runtime = Rationed(1)
    with pytest.raises(OutOfMemory):
        PagedKVCache(runtime, 0, SIZE, torch.float32, blocks=2)
    assert runtime.memory_stats(0).live_allocations == 0


def test_release_gives_blocks_back_once():
    _, cache = make(blocks=4)
    sequences = [cache.new_sequence(), cache.new_sequence()]
    cache.advance(sequences, [5, 8])
    cache.release(sequences)
    assert (cache.pool.free, [s.length for s in sequences]) == (4, [0, 0])
    cache.release(sequences)
    assert cache.pool.free == 4
    cache.advance(sequences, [8, 8])
    assert cache.pool.free == 0


def test_close_gives_the_memory_back_and_release_still_works():
    runtime, cache = make()
    sequence = cache.new_sequence()
    cache.advance([sequence], [3])
    cache.close()
    assert runtime.memory_stats(0).live_allocations == 0
    cache.release([sequence])
    cache.close()
    with pytest.raises(AllocationFreed, match="after its close"):
        cache.advance([sequence], [1])


def test_a_step_in_use_keeps_its_tensors_through_growth():
    _, cache = make(blocks=1)
    first, second = cache.new_sequence(), cache.new_sequence()
    cache.advance([first], [2])
    layers = cache.layers
    mark(cache)
    cache.advance([second], [2])
    assert layers[0][0][0, 1, 0, 3].item() == 7.0
