"""The generator: tokens of the eager path, whoever joins, leaves or has to wait."""

from __future__ import annotations

import pytest
import torch
from tiny_llama import tiny

from vllm_adapter import Generator, InputError, SamplingParams, UnsupportedModel, adapt

PROMPTS = [[5, 9, 2], [7] * 20, [3, 1, 4, 1, 5, 9, 2, 6], [11]]


@pytest.fixture(scope="module")
def reference():
    """Each prompt's greedy tokens, alone, by transformers."""
    model = tiny(eos_token_id=None)
    found = []
    for prompt in PROMPTS:
        given = torch.tensor([prompt])
        out = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=12, do_sample=False
        )
        found.append(out[0, len(prompt) :].tolist())
    return found


def test_greedy_tokens_equal_the_eager_path(reference):
    model = tiny(eos_token_id=None)
    adapt(model, "cpu")
    assert Generator(model).generate(PROMPTS, max_new_tokens=12) == reference


def test_prompts_join_and_leave(reference):
    model = tiny(eos_token_id=None)
    adapt(model, "cpu")
    generator = Generator(model, max_batch=2)
    first = generator.add(PROMPTS[0], max_new_tokens=12)
    for _ in range(4):
        generator.step()
    others = [generator.add(p, max_new_tokens=12) for p in PROMPTS[1:]]
    for _ in generator.stream():
        pass
    assert [r.tokens for r in (first, *others)] == reference
    assert {r.reason for r in (first, *others)} == {"length"}


def test_a_small_cache_makes_some_wait_and_changes_no_token(reference):
    model = tiny(eos_token_id=None)
    adapt(model, "cpu", max_kv_blocks=4)
    assert Generator(model).generate(PROMPTS, max_new_tokens=12) == reference


def test_blocks_come_back():
    model = tiny(eos_token_id=None)
    adapted = adapt(model, "cpu", max_kv_blocks=8)
    generator = Generator(model)
    for _ in range(3):
        running = [generator.add(p, max_new_tokens=5) for p in PROMPTS]
        generator.step()
        generator.step()
        generator.abort(running[1])
        for _ in generator.stream():
            pass
        assert running[1].reason == "abort"
        assert adapted.kv.pool.free == adapted.kv.pool.count


def test_a_stop_token_ends_a_request(reference):
    model = tiny(eos_token_id=None)
    adapt(model, "cpu")
    stop = reference[0][3]
    first = reference[0].index(stop)
    generator = Generator(model)
    request = generator.add(PROMPTS[0], max_new_tokens=12, stop=[stop])
    for _ in generator.stream():
        pass
    assert (request.tokens, request.reason) == (reference[0][: first + 1], "stop")


def test_drawn_tokens_depend_on_the_seed_and_not_on_the_batch():
    model = tiny(eos_token_id=None)
    adapt(model, "cpu")
    sampling = SamplingParams(temperature=0.9, top_k=20, top_p=0.9, seed=3)
    alone = Generator(model).generate([PROMPTS[2]], max_new_tokens=8, sampling=sampling)[0]
    generator = Generator(model)
    other = generator.add(PROMPTS[1], max_new_tokens=8)
    mine = generator.add(PROMPTS[2], max_new_tokens=8, sampling=sampling)
    for _ in generator.stream():
        pass
    assert mine.tokens == alone
    assert len(other.tokens) == 8


def test_bad_input_is_said():
    model = tiny(eos_token_id=None)
    with pytest.raises(InputError, match="not adapted"):
        Generator(model)
    adapt(model, "cpu")
    generator = Generator(model, context=16)
    with pytest.raises(InputError, match="16"):
        generator.add([1] * 16)
    with pytest.raises(InputError, match="empty"):
        generator.add([])
    with pytest.raises(InputError, match="top_p"):
        SamplingParams(top_p=0)


def test_a_model_that_was_changed_afterwards_is_refused():
    model = tiny(eos_token_id=None)
    adapt(model, "cpu")
    generator = Generator(model)
    generator.add(PROMPTS[0])
    model.config.is_causal = False
    with pytest.raises(UnsupportedModel):
        generator.step()
