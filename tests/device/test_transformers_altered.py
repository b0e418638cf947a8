"""Models that somebody altered before adapt(): refused by name, or with the altered logits."""

from __future__ import annotations

import copy
import types

import pytest
import tiny_bert
import torch
from tiny_llama import batch, checkpoint_activations, tiny
from torch.nn.utils import prune
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

from vllm_adapter.engine.integrations.transformers import adapt, unadapt
from vllm_adapter.engine.integrations.transformers.adapt import adapted_of
from vllm_adapter.errors import UnsupportedModel

pytestmark = pytest.mark.device
GIVEN = batch(5, 17)


@torch.no_grad()
def logits(model):
    out = model(**GIVEN)
    found = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return found[GIVEN["attention_mask"].bool()]


def refused(model, what):
    """adapt() says what and where in one sentence, and the model is as it was."""
    was = dict(model.named_modules()), {id(m): type(m) for m in model.modules()}
    keys = {id(m): set(vars(m)) for m in model.modules()}
    with pytest.raises(UnsupportedModel) as caught:
        adapt(model)
    text = caught.value.message
    assert what in text and "\n" not in text and caught.value.hint
    assert (dict(model.named_modules()), {id(m): type(m) for m in model.modules()}) == was
    assert {id(m): set(vars(m)) for m in model.modules()} == keys


def layer(model):
    return model.encoder.layer[1] if hasattr(model, "encoder") else model.model.layers[1]


def parts(model):
    """(attention, MLP's holder of an activation, a linear, a norm) of the second layer."""
    at = layer(model)
    if hasattr(at, "self_attn"):
        return at.self_attn, at.mlp, at.mlp.down_proj, at.input_layernorm
    return at.attention.self, at.intermediate, at.output.dense, at.output.LayerNorm


def sub(module, **methods):
    """The module as one of a subclass."""
    module.__class__ = type("Mine", (type(module),), methods)


def set_child(module, name, child):
    setattr(module, name, child)


def patched(module):
    module.forward = types.MethodType(type(module).forward, module)


HOOKS = {
    "forward": lambda m: m.register_forward_hook(lambda *a: None),
    "forward pre": lambda m: m.register_forward_pre_hook(lambda *a: None),
    "backward": lambda m: m.register_full_backward_hook(lambda *a: None),
    "backward pre": lambda m: m.register_full_backward_pre_hook(lambda *a: None),
    "state dict": lambda m: m.register_state_dict_post_hook(lambda *a: None),
    "load state dict pre": lambda m: m.register_load_state_dict_pre_hook(lambda *a: None),
}
KINDS = ("llama", "qwen2", "qwen3", "bert")


def made(kind, **config):
    return tiny_bert.tiny(vocab_size=128, **config) if kind == "bert" else tiny(kind, **config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["layer", 0, 1, 2, 3])
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_every_kind_on_every_part(kind, which, hook):
    model = made(kind)
    HOOKS[hook](layer(model) if which == "layer" else parts(model)[which])
    refused(model, f"has a {hook} hook")


ALTERED = {
    "forward on the instance": (lambda m: patched(parts(m)[1]), "has forward"),
    "forward of a linear": (lambda m: patched(parts(m)[2]), "has forward"),
    "forward of the layer": (lambda m: patched(layer(m)), "has forward"),
    "subclassed attention": (lambda m: sub(parts(m)[0]), "is a Mine in the place of a"),
    "subclassed linear": (lambda m: sub(parts(m)[2]), "is a Mine in the place of a Linear"),
    "subclassed norm": (lambda m: sub(parts(m)[3]), "is a Mine in the place of a"),
    "subclassed layer": (lambda m: sub(layer(m)), "is a Mine in the place of a"),
    "is_causal": (
        lambda m: setattr(parts(m)[0], "is_causal", not parts(m)[0].is_causal),
        "is_causal of",
    ),
    "scaling as a tensor": (
        lambda m: setattr(parts(m)[0], "scaling", torch.tensor(0.1)),
        "scaling of",
    ),
    "scaling of nothing": (lambda m: setattr(parts(m)[0], "scaling", 0.0), "is 0.0"),
    "scaling that is no number": (
        lambda m: setattr(parts(m)[0], "scaling", float("nan")),
        "is nan",
    ),
    "another order of layers": (lambda m: setattr(parts(m)[0], "layer_idx", 0), "layer_idx of"),
    "a child more": (
        lambda m: parts(m)[1].add_module("more", torch.nn.Identity()),
        "is a module that the stock model does not have",
    ),
    "a parameter more": (
        lambda m: parts(m)[2].register_parameter("lora", torch.nn.Parameter(torch.zeros(1))),
        "lora is not in the stock model",
    ),
    "a buffer more": (
        lambda m: parts(m)[3].register_buffer("mask", torch.ones(1)),
        "mask is not in the stock model",
    ),
    "an attribute more": (lambda m: setattr(parts(m)[0], "steer", 1), "has steer"),
    "an attribute less": (lambda m: delattr(parts(m)[0], "scaling"), "has lost scaling"),
    "a bias less": (lambda m: _no_bias(parts(m)[2]), "is"),
    "a parametrization": (
        lambda m: torch.nn.utils.parametrizations.weight_norm(parts(m)[2]),
        "is a ParametrizedLinear",
    ),
    "spectral norm": (lambda m: torch.nn.utils.spectral_norm(parts(m)[2]), "forward pre hook"),
    "pruning": (
        lambda m: prune.l1_unstructured(parts(m)[2], "weight", 0.5),
        "forward pre hook",
    ),
    "a dtype of its own": (lambda m: parts(m)[3].double(), "float64, and other parts"),
    "a meta weight": (lambda m: parts(m)[2].to("meta"), "meta"),
    "a mode of its own": (lambda m: parts(m)[1].train(), "another mode"),
    "a configuration of its own": (
        lambda m: setattr(parts(m)[0], "config", copy.deepcopy(m.config)),
        "a configuration of its own",
    ),
    "another size": (
        lambda m: set_child(parts(m)[1], "wide", torch.nn.Linear(3, 3)),
        "stock model does not have",
    ),
    "a tensor subclass": (
        lambda m: setattr(parts(m)[2], "weight", Weight(parts(m)[2].weight.detach())),
        "is a Weight",
    ),
    "the activation": (lambda m: _activation(parts(m)[1]), "is a Tanh in the place of"),
    "another attention": (lambda m: _attention(m), "is not transformers' own"),
    "a configuration that says otherwise": (
        lambda m: setattr(m.config, "num_attention_heads", 1),
        "by the configuration",
    ),
}


class Weight(torch.nn.Parameter):
    """What a quantised weight looks like."""


def _no_bias(linear):
    with_bias = linear.bias is not None
    linear.bias = None if with_bias else torch.nn.Parameter(torch.ones(linear.out_features))


def _activation(holder):
    name = "act_fn" if hasattr(holder, "act_fn") else "intermediate_act_fn"
    setattr(holder, name, torch.nn.Tanh())


def _attention(model):
    AttentionInterface.register("mine", modeling_llama.eager_attention_forward)
    model.config._attn_implementation = "mine"


@pytest.mark.parametrize("kind", ["llama", "bert"])
@pytest.mark.parametrize("alteration", ALTERED)
def test_alterations_that_our_layers_do_not_express(kind, alteration):
    model, (alter, what) = made(kind), ALTERED[alteration]
    alter(model)
    refused(model, what)


DECODER = {
    "groups": (
        lambda m: setattr(parts(m)[0], "num_key_value_groups", 1),
        "num_key_value_groups of",
    ),
    "the last norm's hook": (lambda m: HOOKS["forward"](m.model.norm), "model.norm has a forward"),
    "rope's hook": (lambda m: HOOKS["forward"](m.model.rotary_emb), "model.rotary_emb has a"),
    "rope's forward": (lambda m: patched(m.model.rotary_emb), "model.rotary_emb has forward"),
    "rope's type": (
        lambda m: setattr(m.model.rotary_emb, "rope_type", "linear"),
        "rope_type of model.rotary_emb",
    ),
    "the base's forward": (lambda m: patched(m.model), "forward of model is replaced"),
    "the base's class": (lambda m: sub(m.model), "Mine is not served"),
    "a layer less": (lambda m: m.model.layers.__delitem__(1), "model.layers.1 is missing"),
    "a layer twice": (lambda m: m.model.layers.append(m.model.layers[0]), "model.layers.2"),
    "the list": (lambda m: sub(m.model.layers), "model.layers is a Mine"),
    "a window in the configuration": (
        lambda m: setattr(m.config, "is_causal", False),
        "not causal",
    ),
}


@pytest.mark.parametrize("alteration", DECODER)
def test_alterations_of_a_decoder(alteration):
    model, (alter, what) = tiny(), DECODER[alteration]
    alter(model)
    refused(model, what)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_window_of_one_layer_alone(kind):
    model = tiny(kind)
    parts(model)[0].sliding_window = 4
    refused(model, "sliding_window of model.layers.1.self_attn is 4")


SERVED = {
    "eps of one norm": lambda m: _set_eps(parts(m)[3], 0.5),
    "scaling of one attention": lambda m: setattr(parts(m)[0], "scaling", 0.6),
    "a hook on the whole model": lambda m: m.register_forward_hook(_more),
    "weights": lambda m: parts(m)[2].weight.data.mul_(1.5),
    "dropout": lambda m: [setattr(d, "p", 0.5) for d in m.modules() if hasattr(d, "p")],
    "hidden states were asked for": lambda m: m(**GIVEN, output_hidden_states=True),
    "eager attention": lambda m: m.set_attn_implementation("eager"),
}


def _more(module, args, out):
    name = "logits" if hasattr(out, "logits") else "last_hidden_state"
    out[name] = out[name] + 1
    return out


def _set_eps(norm, eps):
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alteration", SERVED)
def test_alterations_that_are_served(kind, alteration):
    model = made(kind)
    before = logits(model)
    SERVED[alteration](model)
    want = logits(model)
    adapt(model)
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-4)
    if "eps" in alteration or "scaling" in alteration:
        assert (want - before).abs().max() > 1e-2
    unadapt(model)
    torch.testing.assert_close(logits(model), want, rtol=0, atol=0)


DECODERS_SERVED = {
    "rope's frequencies": lambda m: m.model.rotary_emb.inv_freq.mul_(0.5),
    "rope's scaling": lambda m: setattr(m.model.rotary_emb, "attention_scaling", 1.3),
    "gradient checkpointing": checkpoint_activations,
    "eps of the last norm": lambda m: _set_eps(m.model.norm, 3.0),
    "a hook on the embedding": lambda m: m.model.embed_tokens.register_forward_hook(
        lambda module, args, out: out * 2
    ),
    "a hook on the head": lambda m: m.lm_head.register_forward_hook(
        lambda module, args, out: out * 2
    ),
    "another head": lambda m: setattr(
        m, "lm_head", torch.nn.Sequential(m.lm_head, torch.nn.Tanh())
    ),
    "resized embeddings": lambda m: m.resize_token_embeddings(140),
    "a head of the whole model": lambda m: sub(m),
}


@pytest.mark.parametrize("alteration", DECODERS_SERVED)
def test_alterations_of_a_decoder_that_are_served(alteration):
    model = tiny()
    before = logits(model)
    DECODERS_SERVED[alteration](model)
    want = logits(model)
    if alteration not in ("a head of the whole model", "gradient checkpointing"):
        assert want.shape != before.shape or (want - before).abs().max() > 1e-2
    adapt(model)
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-4)


def test_head_norms_have_their_own_eps():
    model = tiny("qwen3")
    parts(model)[0].q_norm.variance_epsilon, parts(model)[0].k_norm.variance_epsilon = 0.7, 2.0
    want = logits(model)
    adapt(model)
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-4)


def test_an_encoder_s_own_places_and_kinds():
    model = made("bert")
    model.embeddings.position_ids = model.embeddings.position_ids.flip(1)
    model.embeddings.token_type_ids = torch.ones_like(model.embeddings.token_type_ids)
    want = logits(model)
    adapt(model)
    torch.testing.assert_close(logits(model), want, rtol=0, atol=1e-5)


GLOBAL = {
    "a class's forward": (modeling_llama.LlamaMLP, "forward", lambda s, x: x),
    "another class's forward": (
        modeling_llama.LlamaRMSNorm,
        "forward",
        modeling_qwen2.Qwen2RMSNorm.forward,
    ),
    "a class's call": (modeling_llama.LlamaAttention, "__call__", lambda s, *a, **k: a),
    "torch's call": (torch.nn.Module, "__call__", lambda s, *a, **k: s.forward(*a, **k)),
    "rotation": (modeling_llama, "apply_rotary_pos_emb", lambda q, k, *a, **b: (q, k)),
    "rotation of another model": (
        modeling_llama,
        "apply_rotary_pos_emb",
        modeling_qwen2.apply_rotary_pos_emb,
    ),
    "what rotation calls": (modeling_llama, "rotate_half", lambda x: x),
    "the mask": (modeling_llama, "create_causal_mask", lambda *a, **k: None),
    "torch's linear": (torch.nn.functional, "linear", lambda x, w, b=None: x @ w.T),
    "torch's silu": (torch.nn.functional, "silu", torch.relu),
    "a wrapped forward": (modeling_llama.LlamaMLP, "forward", None),
}


def _wrapping(function):
    import functools

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("patch", GLOBAL)
def test_code_replaced_for_all_models(patch, when, monkeypatch):
    where, name, by = GLOBAL[patch]
    by = by or _wrapping(getattr(where, name))
    model = tiny()
    want = logits(model)
    if when == "after":
        adapt(model)
    monkeypatch.setattr(where, name, by)
    if when == "before":
        refused(model, f"{name} was replaced")
        assert adapted_of(model) is None
    else:
        with pytest.raises(
            UnsupportedModel, match=f"{name} replaced|outside of the model's forward"
        ):
            logits(model)
        monkeypatch.undo()
        torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_for_the_modules_of_all_models(when):
    model = tiny()
    if when == "after":
        adapt(model)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *a: None)
    try:
        if when == "before":
            refused(model, "torch has forward hooks for modules of all models")
        else:
            with pytest.raises(UnsupportedModel, match="forward hooks for modules of all models"):
                logits(model)
    finally:
        hook.remove()


def test_attention_registered_in_the_place_of_transformers_own():
    model, table = tiny(), modeling_llama.ALL_ATTENTION_FUNCTIONS
    was = table["sdpa"]
    AttentionInterface.register("sdpa", lambda *a, **k: None)
    try:
        refused(model, "'sdpa' in ALL_ATTENTION_FUNCTIONS was replaced")
    finally:
        AttentionInterface.register("sdpa", was)
    adapt(model)


ROPES = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kind", ROPES)
def test_tables_of_all_served_ropes_grow_and_are_exactly_the_model_s(kind):
    config = {"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]}
    model = tiny(max_position_embeddings=1_010_000, rope_parameters=config)
    want = logits(model)
    rotary = model.model.rotary_emb
    adapted = adapt(model)
    torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-4)
    rope = adapted.steps.rope
    first = rope.upto(1)
    assert first.shape == (4096, 32)
    longer = rope.upto(70_001)
    assert longer.shape == (70_001, 32) and rope.upto(70_002).shape == (140_002, 32)
    positions = torch.arange(70_001)[None]
    cos, sin = rotary(torch.empty(0), position_ids=positions)
    assert torch.equal(longer, torch.cat((cos[0, :, :16], sin[0, :, :16]), -1))
    assert torch.equal(first, longer[:4096])


def test_a_longer_table_is_used_by_the_next_step():
    model = tiny(max_position_embeddings=20_000)
    far = torch.arange(9_000, 9_005)[None]
    ids = GIVEN["input_ids"][1:, :5]
    with torch.no_grad():
        want = model(ids, position_ids=far).logits
        adapted = adapt(model)
        model(ids)
        assert adapted.steps.rope.upto(1).shape[0] == 4096
        torch.testing.assert_close(model(ids, position_ids=far).logits, want, rtol=1e-4, atol=1e-4)


def test_the_state_of_random_numbers_stays():
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
    ).eval()
    before = torch.get_rng_state()
    adapt(model)
    assert torch.equal(torch.get_rng_state(), before)
