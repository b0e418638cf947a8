"""What somebody does to a model after adapt(): it works, or is refused and nothing changed."""

from __future__ import annotations

import copy
import pickle
import types

import pytest
import tiny_bert
import torch
from tiny_llama import batch, checkpoint_activations, greedy, tiny
from transformers import AttentionInterface
from transformers.models.llama import modeling_llama

from vllm_adapter.engine.integrations.transformers import adapt, unadapt
from vllm_adapter.errors import UnsupportedModel

pytestmark = pytest.mark.device
GIVEN = batch(5, 17)


def made(kind):
    return tiny_bert.tiny(vocab_size=128) if kind == "bert" else tiny(kind)


@torch.no_grad()
def logits(model):
    out = model(**GIVEN)
    found = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return found[GIVEN["attention_mask"].bool()]


def layers(model):
    return model.encoder.layer if hasattr(model, "encoder") else model.model.layers


def lora(model):
    layers(model)[0].lora = torch.nn.Linear(2, 2)


REFUSED = {
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "to a dtype": lambda m: m.to(torch.bfloat16),
    "to a device": lambda m: m.to("meta"),
    "to empty": lambda m: m.to_empty(device="cpu"),
    "the layers alone": lambda m: layers(m).half(),
    "one layer": lambda m: layers(m)[1].half(),
    "resize": lambda m: m.resize_token_embeddings(200),
    "load": lambda m: m.load_state_dict({}),
    "load, not strict": lambda m: m.load_state_dict({}, strict=False),
    "load into a layer": lambda m: layers(m)[0].load_state_dict({}, strict=False),
    "load into the layers": lambda m: layers(m).load_state_dict({}, strict=False),
    "an adapter": lambda m: m.add_adapter(None),
    "a saved adapter": lambda m: m.load_adapter("there"),
    "gradient checkpointing": checkpoint_activations,
    "tie": lambda m: m.tie_weights(),
    "a part of a layer": lora,
    "a module of a layer": lambda m: layers(m)[0].add_module("x", torch.nn.Identity()),
    "a hook on a layer": lambda m: layers(m)[0].register_forward_hook(lambda *a: None),
    "a pre-hook": lambda m: layers(m)[0].register_forward_pre_hook(lambda *a: None),
    "a backward hook": lambda m: layers(m)[0].register_full_backward_hook(lambda *a: None),
    "a state hook": lambda m: layers(m)[0].register_state_dict_pre_hook(lambda *a: None),
    "a forward": lambda m: setattr(layers(m)[0], "forward", lambda x, **k: x),
    "a parametrization": lambda m: torch.nn.utils.parametrize.register_parametrization(
        layers(m)[0], "index", torch.nn.Identity()
    ),
    "a copy": copy.deepcopy,
    "a pickle": pickle.dumps,
    "saving": lambda m: m.state_dict(),
}


def state(model):
    return {
        id(m): (type(m), sorted(vars(m)), [(id(p), p.dtype, p.device) for p in m.parameters()])
        for m in model.modules()
    }


@pytest.mark.parametrize("kind", ["qwen3", "bert"])
@pytest.mark.parametrize("change", REFUSED)
def test_changes_that_would_reach_half_of_the_model(kind, change):
    model = made(kind)
    adapt(model)
    want, before = logits(model), state(model)
    with pytest.raises((UnsupportedModel, ValueError)) as caught:
        REFUSED[change](model)
    if isinstance(caught.value, ValueError):  # torch's: there is no such parameter
        assert change == "a parametrization"
    else:
        assert "\n" not in caught.value.message and "unadapt(model)" in caught.value.hint
    assert state(model) == before
    assert torch.equal(logits(model), want)


WORKS = {
    "to its own dtype": lambda m: m.to(torch.float32),
    "to its own device": lambda m: m.to("cpu"),
    "float": lambda m: m.float(),
    "train and eval": lambda m: m.train().eval(),
    "frozen": lambda m: m.requires_grad_(False),
}


@pytest.mark.parametrize("kind", ["llama", "bert"])
@pytest.mark.parametrize("change", WORKS)
def test_changes_that_work(kind, change):
    model = made(kind)
    adapt(model)
    want = logits(model)
    WORKS[change](model)
    assert torch.equal(logits(model), want)
    unadapt(model)
    logits(model)


def altered_equals(change):
    """The same change of a plain model and of an adapted one."""
    plain, mine = tiny(), tiny()
    adapt(mine)
    change(plain), change(mine)
    torch.testing.assert_close(logits(mine), logits(plain), rtol=1e-4, atol=1e-4)


def embedding(seed):
    torch.manual_seed(seed)
    return torch.nn.Embedding(128, 192)


def test_another_embedding_of_a_decoder():
    altered_equals(lambda m: m.set_input_embeddings(embedding(3)))


def test_another_head():
    def change(model):
        torch.manual_seed(5)
        model.set_output_embeddings(torch.nn.Linear(192, 128, bias=False))

    altered_equals(change)


def test_hooks_on_what_runs_as_it_is():
    altered_equals(
        lambda m: m.model.embed_tokens.register_forward_hook(lambda mod, args, out: out * 2)
    )

    def more(module, args, out):
        out["last_hidden_state"] = out["last_hidden_state"] * 2
        return out

    altered_equals(lambda m: m.model.register_forward_hook(more))


def test_another_embedding_of_an_encoder_is_refused():
    model = made("bert")
    adapt(model)
    want = logits(model)
    with pytest.raises(UnsupportedModel, match="setting word_embeddings"):
        model.set_input_embeddings(embedding(3))
    assert torch.equal(logits(model), want)


def _mine(model):
    AttentionInterface.register("mine", modeling_llama.eager_attention_forward)
    model.set_attn_implementation("mine")


AT_THE_STEP = {
    "attention": (_mine, "another attention implementation"),
    "rope": (
        lambda m: setattr(m.model, "rotary_emb", torch.nn.Identity()),
        "another module at rotary_emb",
    ),
    "causal": (lambda m: setattr(m.config, "is_causal", False), "attention in the configuration"),
    "a pre-hook after ours": (
        lambda m: m.model.register_forward_pre_hook(lambda *a: None),
        "a forward pre-hook on the base model",
    ),
    "the base's forward": (
        lambda m: setattr(m.model, "forward", types.MethodType(type(m.model).forward, m.model)),
        "another forward",
    ),
    "the configuration": (
        lambda m: setattr(m.model, "config", copy.deepcopy(m.config)),
        "configuration",
    ),
    "embeddings in another dtype": (lambda m: m.model.embed_tokens.half(), "float16"),
    "a layer in training": (lambda m: m.model.layers[1].train(), "in training mode"),
    "a layer of transformers": (
        lambda m: m.model.layers.__setitem__(0, copy.deepcopy(tiny().model.layers[0])),
        r"another module at layers\.0 of the Llama",
    ),
}


@pytest.mark.parametrize("change", AT_THE_STEP)
def test_changes_that_the_next_forward_refuses(change):
    model, (alter, what) = tiny(), AT_THE_STEP[change]
    adapt(model)
    alter(model)
    with pytest.raises(UnsupportedModel, match=what):
        logits(model)


HELD = {
    "hook": lambda m: m.register_forward_hook(lambda *a: None),
    "pre-hook": lambda m: m.register_forward_pre_hook(lambda *a: None),
    "forward": lambda m: setattr(m, "forward", lambda x: x),
    "attribute": lambda m: setattr(m, "scaling", 1.0),
    "weight": lambda m: setattr(m, "weight", torch.nn.Parameter(torch.zeros(1))),
    "child": lambda m: setattr(m, "lora", torch.nn.Linear(2, 2)),
    "half": lambda m: m.half(),
    "load": lambda m: m.load_state_dict({}, strict=False),
    "copy": copy.deepcopy,
}


@pytest.mark.parametrize("change", HELD)
@pytest.mark.parametrize("kind", ["qwen3", "bert"])
def test_modules_that_somebody_holds_and_that_no_longer_run(kind, change):
    model = made(kind)
    held = list(layers(model)[1].modules())
    kinds = [type(m) for m in held]
    adapt(model)
    want, plain = logits(model), [m for m in held if next(m.parameters(), None) is not None]
    for module in plain:
        with pytest.raises(UnsupportedModel, match="while the model is adapted"):
            HELD[change](module)
    assert torch.equal(logits(model), want)
    assert all(isinstance(m, kind) for m, kind in zip(held, kinds, strict=True))
    unadapt(model)
    assert [type(m) for m in held] == kinds
    held[0].register_forward_hook(lambda *a: None)  # theirs again


def test_generation_is_still_plain_after_refusals():
    plain, mine = tiny(), tiny()
    adapt(mine)
    for change in (REFUSED["half"], REFUSED["load"], REFUSED["resize"]):
        with pytest.raises(UnsupportedModel):
            change(mine)
    assert torch.equal(greedy(mine, GIVEN), greedy(plain, GIVEN))
    unadapt(mine)
    assert set(vars(mine)) == set(vars(plain))
    mine.half()
    mine.resize_token_embeddings(130)
    adapt(mine)
    greedy(mine, GIVEN)
