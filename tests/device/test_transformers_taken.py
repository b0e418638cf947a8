"""`adapt` asks the model whether it takes our cache and step, and refuses where it does not."""

from __future__ import annotations

import logging
import sys
import warnings
from functools import partial

import pytest
import torch
import transformers
from tiny_llama import CACHE, batch, greedy, tiny, twins
from transformers import BertConfig, BertModel

from vllm_adapter.engine.integrations.transformers import (
    adapt,
    cache_argument,
    replacement_check,
    unadapt,
)
from vllm_adapter.engine.integrations.transformers.binding_snapshot import BindingSnapshot
from vllm_adapter.errors import UnsupportedModel
from vllm_adapter.settings import Settings

pytestmark = pytest.mark.device
GIVEN = batch(5, 3)


@pytest.fixture(autouse=True)
def a_release_to_come(monkeypatch):
    """Models changed here stand for a release's own: another check would refuse their classes."""
    module = sys.modules["vllm_adapter.engine.integrations.transformers.adapt"]
    monkeypatch.setattr(module, "_check_served", lambda model, base: BindingSnapshot())


def tiny_bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=32,
    )
    return BertModel(config).eval()


def refused(model, said):
    """adapt refuses with the release, what it saw and what works; the model is as it was."""
    before = dict(model.named_modules())
    with pytest.raises(UnsupportedModel) as caught:
        adapt(model)
    assert said in caught.value.message
    assert (
        f"transformers {transformers.__version__} does not take the cache" in caught.value.message
    )
    assert "pip install 'transformers>=5.17.0,<5.25'" in caught.value.hint
    assert {name: type(m) for name, m in model.named_modules()} == {
        name: type(m) for name, m in before.items()
    }
    assert "_vllm_adapter" not in model.__dict__


def wrapped(model, change):
    """The model with a forward that changes its arguments first, signature and all."""

    class Changed(type(model)):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **change(kwargs))

        forward.__wrapped__ = type(model).forward

    model.__class__ = Changed
    return model


def without(name):
    return lambda kwargs: {key: value for key, value in kwargs.items() if key != name}


def test_a_model_whose_layers_get_no_step_is_refused():
    model = tiny()
    wrapped(model.model, without("va_step"))
    refused(model, "its layers are not given the step")
    assert greedy(model, GIVEN, 3).shape == (2, 8)


def test_a_model_that_leaves_the_cache_out_is_refused():
    model = tiny()
    wrapped(model.model, without(CACHE))
    refused(model, "its layers are not given the cache")


def test_a_model_that_puts_its_own_cache_in_the_place_of_ours_is_refused():
    """What transformers 5.24 did with the cache's former name: generate() gave the new one."""
    model = tiny()
    own = transformers.DynamicCache(config=model.config)
    wrapped(model.model, lambda kwargs: kwargs | {CACHE: own})
    refused(model, "its layers are not given the cache")


def test_a_model_that_gives_no_cache_back_is_refused():
    model = tiny()
    inner = type(model.model)

    class Forgets(inner):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            setattr(out, CACHE, transformers.DynamicCache())
            return out

        forward.__wrapped__ = inner.forward

    model.model.__class__ = Forgets
    refused(model, "it does not carry the cache on")


def test_a_model_without_an_argument_for_the_cache_is_refused():
    model = tiny()

    class Renamed(type(model.model)):
        def forward(self, input_ids=None, attention_mask=None, kv=None, **kwargs):
            return super().forward(input_ids, attention_mask, **{CACHE: kv}, **kwargs)

    model.model.__class__ = Renamed
    refused(model, "Renamed has no argument cache or past_key_values")


def test_what_a_forward_raises_is_told():
    model = tiny()

    def change(kwargs):
        raise TypeError("forward() got an unexpected keyword argument 'va_step'")

    wrapped(model.model, change)
    refused(model, "ends in TypeError: forward() got an unexpected keyword argument 'va_step'")


def test_an_encoder_whose_layers_get_no_step_is_refused():
    refused(wrapped(tiny_bert(), without("va_step")), "its layers are not given the step")


@pytest.mark.parametrize("make", [tiny, partial(tiny, "qwen3"), lambda: tiny().model, tiny_bert])
def test_the_check_runs_no_kernel_of_an_adapter_and_leaves_nothing(make, use, calls):
    """Also of a model in training, or one that is set to give hidden states: a forward refuses."""
    name = use(rms_norm={"run": "norm"}, fused_add_rms_norm={"run": "fused_norm"})
    model = make().train()
    model.config.output_hidden_states = True
    ops = {} if make is tiny_bert else dict.fromkeys(("rms_norm", "fused_add_rms_norm"), name)
    adapted = adapt(model, settings=Settings(ops=ops))
    assert calls == []
    assert model.training and all(module.training for module in model.modules())
    if make is not tiny_bert:
        assert adapted.kv.pool.free == adapted.kv.pool.count
    with pytest.raises(UnsupportedModel, match="output_hidden_states is not served"):
        model(GIVEN["input_ids"] % 64)
    unadapt(model)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_base_model_takes_the_cache_under_either_name(name):
    plain, mine = (model.model for model in twins())
    adapt(mine)
    ids = GIVEN["input_ids"][:1]

    def states(model, name):
        first = model(ids)
        again = model(ids[:, -1:], **{name: first[CACHE]})
        return again.last_hidden_state

    with torch.no_grad():
        torch.testing.assert_close(states(mine, name), states(plain, CACHE), rtol=1e-4, atol=1e-4)


def test_two_caches_are_refused():
    model = tiny().model
    adapt(model)
    caches = [model(GIVEN["input_ids"])[CACHE] for _ in range(2)]
    both = dict(zip(replacement_check.CACHE_NAMES, caches, strict=True))
    with pytest.raises(UnsupportedModel, match="two caches are given"):
        model(GIVEN["input_ids"], **both)


def test_no_warning_of_transformers_is_caused(caplog):
    model = tiny()
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        adapt(model)
        greedy(model, GIVEN, 3)
    assert "deprecated" not in caplog.text


def test_the_range_is_the_one_that_core_declares():
    assert replacement_check.tested_releases() == "transformers>=5.17.0,<5.25"
    assert cache_argument(tiny()) == CACHE == cache_argument(tiny().model)
