"""What an adapted model refuses, each in one sentence of ours, and what adapt() refuses."""

from __future__ import annotations

import gc

import pytest
import torch
from tiny_llama import CACHE, batch, greedy, tiny
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPT2Config,
    MistralConfig,
    QuantizedCache,
    StaticCache,
)
from transformers.cache_utils import Cache, DynamicLayer

from vllm_adapter.engine.integrations.transformers import PagedCache, adapt, unadapt
from vllm_adapter.errors import AdapterError, InputError, OutOfMemory, UnsupportedModel

pytestmark = pytest.mark.device
GIVEN = batch(5, 16)
IDS = GIVEN["input_ids"]


@pytest.fixture(scope="module")
def model():
    model = tiny()
    adapt(model)
    gc.collect()
    gc.freeze()  # else each test looks through all that the tests before have left
    yield model
    gc.unfreeze()


@pytest.fixture(autouse=True)
def a_refusal_keeps_no_block(model):
    yield
    pool = model.__dict__["_vllm_adapter"].kv.pool
    gc.collect()
    assert pool.free == pool.count


def refused(call, what, error=UnsupportedModel):
    with pytest.raises(error, match=what) as caught, torch.no_grad():
        call()
    sentence = caught.value.message
    assert "\n" not in sentence and caught.value.hint
    del caught


GENERATION = {
    "beam search": ({"num_beams": 2}, "does not serve beam search"),
    "static cache": ({"cache_implementation": "static"}, "StaticCache given"),
    "offloaded cache": ({"cache_implementation": "offloaded"}, "DynamicCache given"),
    "attentions": (
        {"output_attentions": True, "return_dict_in_generate": True},
        "output_attentions is not served",
    ),
    "hidden states": (
        {"output_hidden_states": True, "return_dict_in_generate": True},
        "output_hidden_states is not served",
    ),
    "more than the positions": ({"new": 300}, "needs 257 positions, and the model has 256"),
}


@pytest.mark.parametrize(("options", "what"), GENERATION.values(), ids=GENERATION)
def test_generation_modes(model, options, what):
    refused(lambda: greedy(model, GIVEN, **({"new": 4} | options)), what)


def test_prompt_look_up(model):
    given = {"input_ids": torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])}
    refused(lambda: greedy(model, given, prompt_lookup_num_tokens=3), "cropping the cache")


def test_what_a_paged_cache_cannot_do(model):
    cache = model(**GIVEN)[CACHE]
    assert isinstance(cache, PagedCache)
    refused(lambda: cache.crop(-1), "cropping the cache")
    refused(lambda: cache.reorder_cache(torch.tensor([0, 1])), "beam search")
    refused(lambda: cache.batch_repeat_interleave(2), "repeating")
    refused(lambda: cache.batch_select_indices(torch.tensor([0])), "selecting")


def quantized():
    """A quantised cache as far as its kind goes; its packages need not be installed."""
    cache = QuantizedCache.__new__(QuantizedCache)
    Cache.__init__(cache, layers=[DynamicLayer(), DynamicLayer()])
    return cache


def filled():
    cache = DynamicCache()
    cache.update(torch.zeros(2, 2, 3, 32), torch.zeros(2, 2, 3, 32), 0)
    return cache


CACHES = {
    "static": lambda: StaticCache(config=tiny().config, max_cache_len=64),
    "offloaded": lambda: DynamicCache(offloading=True),
    "quantised": quantized,
    "filled": filled,
}


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_caches_of_others(model, make):
    refused(lambda: model(**GIVEN, **{CACHE: make()}), "no empty default cache")


def test_a_default_cache_whose_place_a_paged_one_took(model):
    cache = DynamicCache()
    model(IDS, **{CACHE: cache})
    refused(lambda: model(IDS[:, -1:], **{CACHE: cache}), "was replaced in an earlier")


def test_a_cache_of_another_model(model):
    other = tiny()
    adapt(other)
    cache = other(IDS)[CACHE]
    refused(lambda: model(IDS, **{CACHE: cache}), "made by another adapted model")


def test_a_cache_that_outlives_unadapt():
    mine = tiny()
    adapt(mine)
    cache = mine(IDS)[CACHE]
    unadapt(mine)
    refused(lambda: mine(IDS[:, -1:], **{CACHE: cache}), "to a model that is not adapted")
    adapt(mine)
    refused(lambda: mine(IDS[:, -1:], **{CACHE: cache}), "before this one was adapted")


def test_a_batch_of_another_size(model):
    cache = model(**GIVEN)[CACHE]
    refused(lambda: model(IDS[:1], **{CACHE: cache}), "holds 2 rows and the batch has 1")


MASKS = {
    "four dimensions": lambda mask: torch.ones(2, 1, 16, 16),
    "a prepared dictionary": lambda mask: {"full_attention": mask},
    "too short": lambda mask: mask[:, 1:],
    "another batch": lambda mask: mask[:1],
}


@pytest.mark.parametrize("make", MASKS.values(), ids=MASKS)
def test_masks(model, make):
    mask = make(GIVEN["attention_mask"])
    refused(lambda: model(IDS, attention_mask=mask), "the attention mask is")


def test_a_mask_that_hides_or_shows_cached_tokens(model):
    cache = model(**GIVEN)[CACHE]
    for row, column in ((1, 3), (0, 0)):
        mask = torch.cat((GIVEN["attention_mask"], torch.ones(2, 1, dtype=torch.long)), 1)
        mask[row, column] = 1 - mask[row, column]
        refused(
            lambda mask=mask: model(IDS[:, :1], attention_mask=mask, **{CACHE: cache}),
            "hides tokens that were real before, or the reverse",
        )


def test_positions_beyond_the_table(model):
    refused(lambda: model(torch.ones(1, 257, dtype=torch.long)), "needs 257 positions")
    far = torch.tensor([[255, 256]])
    refused(lambda: model(IDS[:1, :2], position_ids=far), "needs 257 positions")


def test_sequences_packed_in_one_row(model):
    packed = torch.tensor([[0, 1, 2, 0, 1]])
    refused(lambda: model(IDS[:1, :5], position_ids=packed, use_cache=False), "packed in one row")


def test_training(model):
    model.train()
    try:
        refused(lambda: model(IDS), "serves inference only")
    finally:
        model.eval()


def test_saving_an_adapted_model(model, tmp_path):
    refused(lambda: model.save_pretrained(tmp_path / "saved"), "are not saved")
    refused(model.state_dict, "are not saved")


def test_more_tokens_than_max_kv_blocks_hold(model):
    mine = tiny()
    adapted = adapt(mine, max_kv_blocks=3)
    refused(lambda: greedy(mine, batch(16, 16), 4), "needs 2 more blocks", OutOfMemory)
    gc.collect()
    assert adapted.kv.pool.free == 3
    assert greedy(mine, batch(16), 4).shape == (1, 20)
    refused(lambda: adapt(tiny(), max_kv_blocks=0), "max_kv_blocks is 0", InputError)


def small(kind, **config):
    return AutoModelForCausalLM.from_config(
        kind(vocab_size=64, bos_token_id=1, eos_token_id=2, **config)
    ).eval()


class Replaced(torch.nn.Linear):
    """What a quantiser or an adapter of weights puts in the place of a linear."""


def replaced(name):
    model = tiny()
    layer = model.model.layers[1]
    part = layer.self_attn if hasattr(layer.self_attn, name) else layer.mlp
    old = getattr(part, name)
    setattr(part, name, Replaced(old.in_features, old.out_features, bias=False))
    return model


MODELS = {
    "gpt2": (lambda: small(GPT2Config, n_embd=32, n_layer=1, n_head=2), "a gpt2 model"),
    "mistral": (
        lambda: small(
            MistralConfig,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        ),
        "a mistral model",
    ),
    "no transformers model": (lambda: torch.nn.Linear(2, 2), "a Linear model"),
    "dynamic rope": (
        lambda: tiny(
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
        ),
        "rope of type dynamic",
    ),
    "gelu": (lambda: tiny(hidden_act="gelu"), "the activation gelu"),
} | {
    name: (lambda name=name: replaced(name), "in the place of a Linear")
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
}


@pytest.mark.parametrize(("make", "what"), MODELS.values(), ids=MODELS)
def test_models_that_adapt_does_not_serve(make, what):
    mine = make()
    before = dict(mine.named_modules())
    refused(lambda: adapt(mine), what)
    assert dict(mine.named_modules()) == before


def test_adapting_twice(model):
    refused(lambda: adapt(model), "adapted already")


def test_unadapting_a_plain_model():
    refused(lambda: unadapt(tiny()), "is not adapted", InputError)


def test_an_adapter_that_there_is_not():
    refused(lambda: adapt(tiny(), "no_such"), "no_such", AdapterError)
