"""What an adapted model is asked for and has not: each answer is ours, and says what and where."""

from __future__ import annotations

import copy
import pickle

import pytest
import tiny_bert
import torch
from tiny_llama import CACHE, batch, tiny

from vllm_adapter.engine.integrations.transformers import adapt, unadapt
from vllm_adapter.engine.integrations.transformers.guard import ReplacementModule
from vllm_adapter.errors import UnsupportedModel

pytestmark = pytest.mark.device
GIVEN = batch(5, 9)


def made(kind):
    model = tiny_bert.tiny(vocab_size=128) if kind == "bert" else tiny(kind)
    adapt(model, "cpu")
    return model


def first(output):
    return output[0] if isinstance(output, tuple) else next(iter(output.values()))


def embedded(model):
    shape = 2, 9, model.config.hidden_size
    return {"inputs_embeds": torch.randn(shape, requires_grad=True)}


KINDS = pytest.mark.parametrize("kind", ["llama", "bert"])


@KINDS
@pytest.mark.parametrize("how", ["weights", "inputs", "a tuple", "the base alone"])
def test_gradients_are_refused_where_torch_asks_for_them(kind, how):
    model = made(kind)
    given = dict(GIVEN)
    if how == "inputs":
        model.requires_grad_(False)
        given = embedded(model)
    if how == "a tuple":
        given["return_dict"] = False
    asked = getattr(model, "model", model) if how == "the base alone" else model
    output = first(asked(**given))
    with pytest.raises(UnsupportedModel, match="gradients of an adapted model"):
        output.square().mean().backward()


def test_a_loss_refuses_too():
    model = made("llama")
    loss = model(**GIVEN, labels=GIVEN["input_ids"]).loss
    with pytest.raises(UnsupportedModel, match="gradients of an adapted model"):
        loss.backward()


@KINDS
@pytest.mark.parametrize("world", [torch.no_grad, torch.inference_mode])
def test_outputs_of_inference_are_plain_tensors(kind, world):
    model = made(kind)
    with world():
        output = first(model(**GIVEN))
    assert not output.requires_grad
    output.numpy()


@KINDS
def test_outputs_of_a_frozen_model_are_plain_tensors(kind):
    model = made(kind)
    model.requires_grad_(False)
    assert not first(model(**GIVEN)).requires_grad


@KINDS
def test_what_is_frozen_while_adapted_stays_frozen(kind):
    model = made(kind)
    model.requires_grad_(False)
    unadapt(model)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert "requires_grad_" not in vars(model)


def test_a_head_of_ones_own_is_trained_over_a_frozen_base():
    model = tiny()
    model.requires_grad_(False)
    adapt(model, "cpu")
    model.lm_head = torch.nn.Sequential(torch.nn.Linear(192, 3))
    model(**GIVEN).logits.square().mean().backward()
    assert model.lm_head[0].weight.grad.abs().sum() > 0


def test_an_undone_model_has_its_gradients_again():
    model = made("llama")
    unadapt(model)
    model(**GIVEN).logits.square().mean().backward()
    assert model.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "a layer's": lambda cache: copy.deepcopy(cache.layers[0]),
    "in an output": lambda cache: copy.deepcopy({"cache": cache}),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_cache_is_not_copied_and_goes_on(how):
    model = made("llama")
    with torch.no_grad():
        cache = model(**batch(6, 6))[CACHE]
        with pytest.raises(UnsupportedModel, match="copying or pickling"):
            COPIES[how](cache)
        ids = torch.full((2, 1), 7)
        model(input_ids=ids, **{CACHE: cache})
    assert cache.get_seq_length() == 7


@KINDS
def test_a_part_of_a_replaced_module_is_asked_for(kind):
    model = made(kind)
    parts = [module for module in model.modules() if isinstance(module, ReplacementModule)]
    assert len(parts) > 2
    for part in parts:
        with pytest.raises(UnsupportedModel, match="self_attn is not there while the model is"):
            _ = part.self_attn
        assert not hasattr(part, "self_attn")
        assert getattr(part, "inv_freq", 3) == 3
        with pytest.raises(AttributeError, match="__array__"):
            _ = part.__array__


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.model.layers.__setitem__(1, torch.nn.Identity()), r"layers\.1 of the Llama"),
        (lambda m: setattr(m.model, "norm", torch.nn.Identity()), "norm of the LlamaModel"),
        (lambda m: setattr(m.model, "layers", m.model.layers[:1]), "layers of the LlamaModel"),
    ],
)
def test_a_replaced_module_is_named_by_its_path(change, said):
    model = made("llama")
    change(model)
    with torch.no_grad(), pytest.raises(UnsupportedModel, match=f"another module at {said}"):
        model(**GIVEN)


def shared_layer(model):
    other = tiny(seed=4)
    other.model.layers[1] = model.model.layers[0]
    return other


ALREADY = {
    "the model": lambda model: model,
    "its base": lambda model: model.model,
    "another model with a layer of it": shared_layer,
}


@pytest.mark.parametrize("which", ALREADY)
def test_what_is_ours_in_part_is_adapted_already(which):
    model = made("llama")
    with torch.no_grad():
        before = model(**GIVEN).logits
    with pytest.raises(UnsupportedModel, match="adapted already"):
        adapt(ALREADY[which](model), "cpu")
    with torch.no_grad():
        torch.testing.assert_close(model(**GIVEN).logits, before)


def test_a_model_over_an_adapted_base_is_adapted_already():
    model = tiny()
    adapt(model.model, "cpu")
    with pytest.raises(UnsupportedModel, match=r"\(model\.layers\.0\) is adapted already"):
        adapt(model, "cpu")
    unadapt(model.model)
    adapt(model, "cpu")


def test_a_wrapped_forward_that_hands_on_runs():
    plain, mine = tiny(), tiny()
    for model in (plain, mine):
        inner = model.forward

        def forward(*args, _inner=inner, **kwargs):
            out = _inner(*args, **kwargs)
            out.logits = out.logits * 0.5
            return out

        model.forward = forward
    adapt(mine, "cpu")
    real = GIVEN["attention_mask"].bool()
    with torch.no_grad():
        torch.testing.assert_close(
            mine(**GIVEN).logits[real], plain(**GIVEN).logits[real], rtol=1e-4, atol=1e-4
        )


def test_a_wrapped_forward_that_drops_the_cache_is_refused():
    model = tiny()
    inner = model.forward
    model.forward = lambda input_ids=None, inputs_embeds=None, **_: inner(
        input_ids=input_ids, inputs_embeds=inputs_embeds
    )
    with pytest.raises(UnsupportedModel, match="does not take the cache"):
        adapt(model, "cpu")
