"""Qwen2 and Qwen3 through an adapter give what plain transformers gives; so do bare bases."""

from __future__ import annotations

import pytest
import qwen3_embedding
import torch
from tiny_llama import BLOCK, batch, greedy, twins

from vllm_adapter.engine.integrations.transformers import adapt, unadapt

pytestmark = pytest.mark.device
LENGTHS = (5, BLOCK, BLOCK + 1, 1)
MODELS = {
    "qwen3": ("qwen3", {}),
    "qwen3, heads of another width, one KV head": ("qwen3", {"kv_heads": 1, "head_dim": 64}),
    "qwen3, biases, long rope": (
        "qwen3",
        {
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    ),
    "qwen2": ("qwen2", {}),
}
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
"""The second of two layers sees seven tokens."""


@pytest.mark.parametrize(("kind", "config"), MODELS.values(), ids=MODELS)
def test_greedy_tokens_are_equal(kind, config):
    plain, mine = twins(kind, **config)
    adapted = adapt(mine)
    given = batch(*LENGTHS)
    assert torch.equal(greedy(mine, given, 24), greedy(plain, given, 24))
    assert adapted.providers["paged_attention"][0].startswith("cpu")


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_layers_with_a_window_have_a_plan_of_their_own(kind):
    plain, mine = twins(kind, **WINDOW)
    full, _ = twins(kind)
    adapt(mine)
    given = batch(*LENGTHS)
    want = greedy(plain, given, 24)
    assert torch.equal(greedy(mine, given, 24), want)
    assert not torch.equal(greedy(full, given, 24), want)


def test_unadapt_gives_the_model_back():
    plain, mine = twins("qwen3")
    adapt(mine)
    unadapt(mine)
    given = batch(*LENGTHS)
    with torch.no_grad():
        assert torch.equal(mine(**given).logits, plain(**given).logits)
    assert list(mine.state_dict()) == list(plain.state_dict())


def last_token(model, given):
    """The embedding as Qwen3-Embedding's users take it: the last real token's, normalised."""
    with torch.no_grad():
        hidden = model(**given, use_cache=False).last_hidden_state
    last = given["attention_mask"].sum(1) - 1
    return torch.nn.functional.normalize(hidden[torch.arange(len(last)), last], dim=-1)


def test_a_bare_base_model_embeds_sentences():
    plain, mine = (model.model for model in twins("qwen3"))
    adapt(mine)
    given = batch(*LENGTHS, side="right")
    torch.testing.assert_close(
        last_token(mine, given), last_token(plain, given), rtol=0, atol=1e-5
    )


@pytest.mark.slow
def test_the_shape_of_qwen3_embedding_0_6b():
    model = qwen3_embedding.model()
    given = batch(7, 20, side="right")
    want = last_token(model, given)
    adapt(model)
    torch.testing.assert_close(last_token(model, given), want, rtol=0, atol=1e-5)
