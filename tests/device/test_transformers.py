"""An adapted Llama gives the tokens that plain transformers gives, however it is called."""

from __future__ import annotations

import gc

import pytest
import torch
from tiny_llama import BLOCK, CACHE, batch, greedy, twins
from transformers import DynamicCache
from transformers.generation import TextStreamer

from vllm_adapter.engine.integrations.transformers import PagedCache, adapt

pytestmark = pytest.mark.device
LENGTHS = (5, BLOCK, BLOCK + 1, 1)
"""Unequal, one exactly a block, one a token more."""


@pytest.fixture(scope="module")
def pair():
    """(plain, adapted) with the same weights."""
    plain, mine = twins()
    adapt(mine)
    return plain, mine


@pytest.fixture
def pool(pair):
    """The block pool, which must be whole again when a test has dropped its caches."""
    pool = pair[1].__dict__["_vllm_adapter"].kv.pool
    yield pool
    gc.collect()
    assert pool.free == pool.count


SHAPES = {
    "gqa 1": {"heads": 2, "kv_heads": 2},
    "gqa 3": {"heads": 6, "kv_heads": 2},
    "gqa 4, heads of 64": {"heads": 4, "kv_heads": 1, "head_size": 64},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied head": {"tie_word_embeddings": True},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn rope": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_greedy_tokens_are_equal_for_every_shape(config):
    plain, mine = twins(**config)
    adapt(mine)
    given = batch(*LENGTHS)
    assert torch.equal(greedy(mine, given, 24), greedy(plain, given, 24))


@pytest.mark.parametrize("config", [SHAPES["gqa 3"], SHAPES["biases"]])
def test_logits_are_close_in_bfloat16(config):
    plain, mine = twins(dtype=torch.bfloat16, **config)
    exact, _ = twins(**config)
    adapt(mine)
    ids = batch(40, 40)["input_ids"]
    with torch.no_grad():
        exact.load_state_dict({k: v.float() for k, v in plain.state_dict().items()})
        truth = exact(ids).logits
        error = (mine(ids).logits.float() - truth).abs().mean()
        usual = (plain(ids).logits.float() - truth).abs().mean()
    assert 0 < error <= 1.25 * usual


def test_right_padding_is_seen_by_no_real_token_now_or_later(pair, pool):
    given = batch(*LENGTHS, side="right")
    mask = given["attention_mask"]
    last = mask.sum(1, keepdim=True)

    def logits(model):
        first = model(**given)
        ids = first.logits.argmax(-1).gather(1, last - 1)
        longer = torch.cat((mask, torch.ones_like(ids)), 1)
        cache = first[CACHE]
        then = model(ids, attention_mask=longer, position_ids=last, **{CACHE: cache})
        return torch.cat((first.logits[mask.bool()], then.logits[:, 0]))

    with torch.no_grad():
        want, got = (logits(model) for model in pair)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_row_that_ends_early_is_padded_as_by_transformers(pair, pool):
    plain, mine = pair
    given = batch(*LENGTHS)
    end = greedy(plain, given)[0, given["input_ids"].shape[1] + 3].item()
    want = greedy(plain, given, eos_token_id=end)
    assert (want[:, -1] == 0).any()
    assert torch.equal(greedy(mine, given, eos_token_id=end), want)


def test_embeddings_may_be_given_in_place_of_tokens(pair, pool):
    plain, mine = pair
    given = batch(*LENGTHS)
    given["inputs_embeds"] = plain.get_input_embeddings()(given.pop("input_ids")).detach()
    assert torch.equal(greedy(mine, given), greedy(plain, given))


def test_positions_may_be_given(pair, pool):
    plain, mine = pair
    given = batch(*LENGTHS)
    shifted = (given["attention_mask"].cumsum(-1) + 6) * given["attention_mask"]
    with torch.no_grad():
        want = plain(**given, position_ids=shifted).logits
        got = mine(**given, position_ids=shifted).logits
    real = given["attention_mask"].bool()
    torch.testing.assert_close(got[real], want[real], rtol=1e-4, atol=1e-4)
    one_row = batch(9)["input_ids"]
    places = torch.arange(9)[None] * 3
    with torch.no_grad():
        torch.testing.assert_close(
            mine(one_row, position_ids=places).logits,
            plain(one_row, position_ids=places).logits,
            rtol=1e-4,
            atol=1e-4,
        )


def test_without_a_mask_every_token_is_real(pair, pool):
    plain, mine = pair
    given = {"input_ids": batch(BLOCK + 1, BLOCK + 1)["input_ids"]}
    assert torch.equal(greedy(mine, given), greedy(plain, given))


def test_without_use_cache_no_cache_comes_back(pair, pool):
    plain, mine = pair
    given = batch(*LENGTHS)
    assert torch.equal(greedy(mine, given, use_cache=False), greedy(plain, given, use_cache=False))
    with torch.no_grad():
        assert getattr(mine(**given, use_cache=False), CACHE) is None


def test_prefill_in_chunks(pair, pool):
    plain, mine = pair
    given = batch(5, 37, 2 * BLOCK)
    want = greedy(plain, given)
    for size in (7, BLOCK):
        assert torch.equal(greedy(mine, given, prefill_chunk_size=size), want)


def test_sampling_with_several_returns_follows_the_seed(pair, pool):
    plain, mine = pair
    given = batch(*LENGTHS)

    def sampled(model):
        torch.manual_seed(3)
        return model.generate(
            **given,
            do_sample=True,
            temperature=0.7,
            top_k=20,
            num_return_sequences=3,
            max_new_tokens=10,
            eos_token_id=None,
            pad_token_id=0,
        )

    assert torch.equal(sampled(mine), sampled(plain))


def test_a_conversation_carries_its_cache_on(pair, pool):
    plain, mine = pair

    def talk(model):
        given = batch(*LENGTHS)
        cache = None
        for turn in range(3):
            out = greedy(model, given, 6, **{CACHE: cache}, return_dict_in_generate=True)
            cache = out[CACHE]
            more = batch(4, 4, 4, 4, seed=turn)["input_ids"]
            ids = torch.cat((out.sequences, more), 1)
            ones = torch.ones_like(ids[:, given["attention_mask"].shape[1] :])
            given = {
                "input_ids": ids,
                "attention_mask": torch.cat((given["attention_mask"], ones), 1),
            }
        return ids, cache

    want, _ = talk(plain)
    got, cache = talk(mine)
    assert torch.equal(got, want)
    assert isinstance(cache, PagedCache)
    assert cache.get_seq_length() == want.shape[1] - 4 - 1


def test_forwards_by_hand_carry_on_with_the_cache_of_the_output(pair, pool):
    plain, mine = pair

    def logits(model):
        given, found = batch(3, BLOCK - 1), []
        ids, mask, cache = given["input_ids"], given["attention_mask"], None
        for _ in range(4):
            out = model(ids, attention_mask=mask, **{CACHE: cache})
            cache, ids = out[CACHE], out.logits[:, -1:].argmax(-1)
            mask = torch.cat((mask, torch.ones_like(ids)), 1)
            found.append(out.logits[:, -1])
        return torch.stack(found)

    with torch.no_grad():
        torch.testing.assert_close(logits(mine), logits(plain), rtol=1e-4, atol=1e-4)


def test_a_forward_outside_of_no_grad_works(pair, pool):
    plain, mine = pair
    given = batch(*LENGTHS)
    got = mine(**given).logits
    real = given["attention_mask"].bool()
    torch.testing.assert_close(got[real], plain(**given).logits[real], rtol=1e-4, atol=1e-4)


def test_calls_that_take_turns_share_the_pool(pair, pool):
    plain, mine = pair
    batches = [batch(3, 19, seed=5), batch(BLOCK, seed=6), batch(2, 2, 2, seed=7)]

    def turns(model):
        caches, found = [None] * 3, []
        for _ in range(BLOCK + 3):
            for i, given in enumerate(state):
                out = model(**given, **{CACHE: caches[i]})
                caches[i], ids = out[CACHE], out.logits[:, -1:].argmax(-1)
                mask = torch.cat((given["attention_mask"], torch.ones_like(ids)), 1)
                state[i] = {"input_ids": ids, "attention_mask": mask}
                found.append(ids.flatten())
        return torch.cat(found)

    with torch.no_grad():
        state = list(batches)
        want = turns(plain)
        state = list(batches)
        assert torch.equal(turns(mine), want)


def test_blocks_come_back_when_the_cache_is_dropped_or_reset(pair, pool):
    mine = pair[1]
    out = greedy(mine, batch(*LENGTHS), return_dict_in_generate=True)
    used = pool.count - pool.free
    lengths = [n + 11 for n in LENGTHS]
    assert used == sum(-(-n // BLOCK) for n in lengths)
    out[CACHE].reset()
    assert (pool.free, out[CACHE].get_seq_length()) == (pool.count, 0)
    greedy(mine, batch(5, 5, 5, 5), **{CACHE: out[CACHE]})
    assert pool.free < pool.count
    del out
    gc.collect()
    assert pool.free == pool.count


def test_a_streamer_gets_every_token(pair, pool):
    class Words(TextStreamer):
        def __init__(self):
            self.seen = []

        def put(self, value):
            self.seen += value.flatten().tolist()

        def end(self):
            self.seen.append("end")

    words, given = Words(), batch(BLOCK)
    want = greedy(pair[0], given)[0].tolist()
    greedy(pair[1], given, streamer=words)
    assert words.seen == [*want, "end"]


def test_inference_mode_and_no_grad_may_take_turns_while_the_cache_grows():
    plain, mine = twins()
    adapted = adapt(mine)
    first = adapted.kv.pool.count
    given = batch(*[2 * BLOCK] * 20)
    with torch.inference_mode():
        held = greedy(mine, given, 20, return_dict_in_generate=True)[CACHE]
        greedy(mine, given, 20)
    assert adapted.kv.pool.count > first
    assert torch.equal(greedy(mine, given, 20), greedy(plain, given, 20))
    assert held.get_seq_length() == 2 * BLOCK + 19


def test_a_base_model_without_a_head_may_be_adapted():
    plain, mine = (model.model for model in twins())
    adapt(mine)
    given = batch(*LENGTHS)
    with torch.no_grad():
        want = plain(given["input_ids"], given["attention_mask"]).last_hidden_state
        got = mine(given["input_ids"], given["attention_mask"]).last_hidden_state
    real = given["attention_mask"].bool()
    torch.testing.assert_close(got[real], want[real], rtol=1e-4, atol=1e-4)


def test_an_empty_default_cache_may_be_given(pair, pool):
    plain, mine = pair
    given = batch(*LENGTHS)
    with_ours = greedy(mine, given, **{CACHE: DynamicCache(config=mine.config)})
    assert torch.equal(with_ours, greedy(plain, given))
