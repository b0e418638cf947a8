"""unadapt(), an adapt() that fails midway, and dropping a model: nothing of ours stays."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from tiny_llama import batch, greedy, tiny, twins
from transformers import LlamaForCausalLM

from vllm_adapter.engine.integrations import layers
from vllm_adapter.engine.integrations.transformers import adapt, unadapt
from vllm_adapter.errors import OutOfMemory, UnsupportedCase
from vllm_adapter.settings import Fallback, Settings

pytestmark = pytest.mark.device
GIVEN = batch(5, 17)
CONFIGS = [{}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": True}]


@contextmanager
def unchanged(model):
    """Everything that can be seen of a model is afterwards as it was."""

    def seen():
        modules = dict(model.named_modules())
        hooks = [
            (name, kind, list(value))
            for name, module in modules.items()
            for kind, value in vars(module).items()
            if kind.endswith(("_hooks", "_hooks_with_kwargs"))
        ]
        parameters = {k: id(p) for k, p in model.named_parameters()}
        config = model.config.to_dict(), model.config._attn_implementation
        return modules, hooks, parameters, config, set(vars(model))

    before = seen()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    tokens = greedy(model, GIVEN)
    with torch.no_grad():
        logits = model(**GIVEN).logits
    yield
    assert seen() == before
    after = model.state_dict()
    assert list(after) == list(weights)
    assert all(torch.equal(after[name], value) for name, value in weights.items())
    assert torch.equal(greedy(model, GIVEN), tokens)
    with torch.no_grad():
        assert torch.equal(model(**GIVEN).logits, logits)


@pytest.mark.parametrize("config", CONFIGS)
def test_unadapt_restores_everything_bit_by_bit(config):
    model = tiny(**config)
    with unchanged(model):
        adapted = adapt(model)
        greedy(model, GIVEN)
        unadapt(model)
    assert adapted.kv.layers == []
    with unchanged(model):
        adapt(model)
        unadapt(model)


def test_the_attention_implementation_comes_back():
    model = tiny(attn_implementation="eager")
    adapt(model)
    assert model.config._attn_implementation == "vllm_adapter"
    unadapt(model)
    assert model.config._attn_implementation == "eager"


def test_the_mode_set_meanwhile_holds_for_the_layers_that_come_back():
    model = tiny().train()
    adapt(model)
    model.eval()
    unadapt(model)
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("config", CONFIGS)
def test_weights_are_shared_and_not_doubled(config):
    model = tiny(**config)
    bytes_before = sum(_storages(model).values())
    originals = list(model.model.layers)
    adapt(model)
    ours = _storages(model)
    theirs = {}
    for layer in originals:
        theirs |= _storages(layer)
    assert set(theirs) <= set(ours)
    # The embedding's rows count once with a tied head; alignment and table are not weights.
    assert sum(ours.values()) == bytes_before
    qkv = model.model.layers[0].inner.qkv.weight
    query = originals[0].self_attn.q_proj.weight
    assert query.data_ptr() == qkv.data_ptr()
    assert torch.equal(query, qkv[: query.shape[0]])


def _storages(module):
    """Bytes of each piece of memory behind a module's parameters."""
    storages = (p.untyped_storage() for p in module.parameters())
    return {s.data_ptr(): s.nbytes() for s in storages}


@pytest.mark.parametrize("unadapted", [True, False])
def test_a_dropped_model_takes_everything_along(unadapted):
    model = tiny()
    adapted = adapt(model)
    out = greedy(model, GIVEN, return_dict_in_generate=True)
    if unadapted:
        unadapt(model)
    seen = [weakref.ref(model), weakref.ref(adapted), weakref.ref(adapted.kv)]
    seen += [weakref.ref(module) for module in model.modules()]
    runtime = adapted.opened.runtime
    del model, adapted, out
    gc.collect()
    assert [ref() for ref in seen] == [None] * len(seen)
    assert runtime.memory_stats(0).live_allocations == 0


def test_a_model_that_is_refused_midway_stays_as_it_was():
    model = tiny(dtype=torch.float64)
    strict = Settings(fallback=Fallback.ERROR)
    with unchanged(model), pytest.raises(UnsupportedCase, match="float64"):
        adapt(model, settings=strict)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_failure_in_the_second_layer_leaves_the_first_and_the_memory(
    config, monkeypatch, tmp_path
):
    model, calls, caches = tiny(**config), [], []

    def fails(shape, cache, **parts):
        calls.append(shape)
        caches.append(cache)
        if len(calls) == 2:
            raise OutOfMemory("full", hint="none")
        return layers.DecoderLayer(shape, cache, **parts)

    monkeypatch.setattr(
        "vllm_adapter.engine.integrations.transformers.decoder.DecoderLayer", fails
    )
    with unchanged(model), pytest.raises(OutOfMemory):
        adapt(model)
    assert caches[0].layers == []
    monkeypatch.undo()
    model.save_pretrained(tmp_path)
    adapt(model)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_model_can_be_saved_after_unadapt(config, tmp_path):
    plain, model = twins(**config)
    adapt(model)
    greedy(model, GIVEN)
    unadapt(model)
    model.save_pretrained(tmp_path / "mine")
    plain.save_pretrained(tmp_path / "plain")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("mine", "plain")]
    assert sizes[0] == sizes[1]
    again = LlamaForCausalLM.from_pretrained(tmp_path / "mine").eval()
    assert torch.equal(greedy(again, GIVEN), greedy(plain, GIVEN))


def test_providers_name_every_operator():
    adapted = adapt(tiny())
    assert set(adapted.providers) == {
        "linear",
        "rms_norm",
        "fused_add_rms_norm",
        "rotary_embedding",
        "silu_and_mul",
        "reshape_and_cache",
        "paged_attention",
    }
    assert all(name.startswith("cpu") for names in adapted.providers.values() for name in names)
