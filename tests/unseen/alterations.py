"""What people do to a decoder before adapt()."""

from __future__ import annotations

import contextlib
import copy
import types

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune
from transformers import AttentionInterface, LlamaForSequenceClassification
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from unseen.odd_modules import (
    HalfResidual,
    Int8Linear,
    Lora,
    Skip,
    Ternary,
    vector,
)


def layer(model, index=1):
    return model.model.layers[index]


# --- hooks


def steering(model):
    layer(model, 0).register_forward_hook(lambda m, a, out: out + vector(out.shape[-1]))


def pre_hook_on_layer(model):
    layer(model).register_forward_pre_hook(lambda m, args: (args[0] * 0.5, *args[1:]))


def hook_on_linear(model):
    layer(model).self_attn.q_proj.register_forward_hook(lambda m, a, out: out * 0.3)


def ablated_head(model):
    def ablate(module, args):
        heads = args[0].clone()
        heads[..., :32] = 0
        return (heads,)

    layer(model, 0).self_attn.o_proj.register_forward_pre_hook(ablate)


def hook_on_final_norm(model):
    model.model.norm.register_forward_hook(lambda m, a, out: out.roll(1, -1))


def hook_on_head(model):
    bias = vector(128)
    model.lm_head.register_forward_hook(lambda m, a, out: out + bias)


def hook_on_embedding(model):
    model.model.embed_tokens.register_forward_hook(lambda m, a, out: out * 3 + vector(192))


def kwargs_hook_on_attention(model):
    def swap(module, args, kwargs):
        cos, sin = kwargs["position_embeddings"]
        return args, kwargs | {"position_embeddings": (torch.ones_like(cos), sin * 0)}

    layer(model).self_attn.register_forward_pre_hook(swap, with_kwargs=True)


def hook_on_rope(model):
    model.model.rotary_emb.register_forward_hook(lambda m, a, out: (out[0] * 0.7, out[1] * 0.7))


def hook_on_activation(model):
    layer(model, 0).mlp.act_fn.register_forward_hook(lambda m, a, out: out.relu())


def always_called_hook(model):
    layer(model).post_attention_layernorm.register_forward_hook(
        lambda m, a, k, out: out * 1.5, with_kwargs=True, always_call=True
    )


def hook_on_base(model):
    def double(module, args, out):
        out.last_hidden_state = out.last_hidden_state * 2
        return out

    model.model.register_forward_hook(double)


@contextlib.contextmanager
def global_hook():
    """A hook of torch on all modules: profilers and sparsity tools set such."""

    def change(module, args, out):
        return out * 1.2 if type(module) is LlamaMLP else None

    handle = nn.modules.module.register_module_forward_hook(change)
    try:
        yield
    finally:
        handle.remove()


def removed_hook(model):
    layer(model, 0).register_forward_hook(lambda m, a, out: out + 1).remove()


# --- patched forwards


def patched_mlp(model):
    mlp = layer(model).mlp
    mlp.forward = lambda x: mlp.down_proj(F.relu(mlp.gate_proj(x)) * mlp.up_proj(x))


def patched_linear(model):
    linear = layer(model).mlp.down_proj

    def quarter(self, x):
        return F.linear(x, self.weight) * 0.25

    linear.forward = types.MethodType(quarter, linear)


def patched_attention(model):
    attention = layer(model, 0).self_attn
    plain = attention.forward

    def forward(*args, **kwargs):
        out, weights = plain(*args, **kwargs)
        return out * 0.5, weights

    attention.forward = forward


def patched_model_forward(model):
    plain = model.forward

    def tempered(*args, **kwargs):
        out = plain(*args, **kwargs)
        out.logits = out.logits / 2
        return out

    model.forward = tempered


@contextlib.contextmanager
def replaced(owner, name, value):
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


def class_patch():
    def gelu_mlp(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x)) * self.up_proj(x))

    return replaced(LlamaMLP, "forward", gelu_mlp)


def norm_class_patch():
    def centred(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight, None, self.variance_epsilon)

    return replaced(LlamaRMSNorm, "forward", centred)


def rope_function_patch():
    def no_rope(q, k, cos, sin, unsqueeze_dim=1):
        return q, k

    return replaced(modeling_llama, "apply_rotary_pos_emb", no_rope)


# --- modules and activations replaced


def other_activation(model):
    layer(model).mlp.act_fn = nn.GELU()


def function_as_activation(model):
    for one in model.model.layers:
        del one.mlp.act_fn
        one.mlp.act_fn = torch.tanh


def retyped(path, kind):
    """The same weights under a subclass, by `__class__`, as quick experiments do."""

    def change(model):
        layer(model).get_submodule(path).__class__ = kind

    return change


def layer_norm_for_norm(model):
    layer(model).input_layernorm = nn.LayerNorm(192)


def layer_is_skipped(model):
    model.model.layers[1] = Skip()


def half_residual(model):
    layer(model).__class__ = HalfResidual


def lora(model):
    for one in model.model.layers:
        one.self_attn.q_proj = Lora(one.self_attn.q_proj)
        one.self_attn.v_proj = Lora(one.self_attn.v_proj)


def merged_lora(model):
    with torch.no_grad():
        for one in model.model.layers:
            weight = one.self_attn.q_proj.weight
            weight += vector((weight.shape[0], 4), 0.2) @ vector((4, weight.shape[1]), 0.2)


def int8_linears(model):
    for one in model.model.layers:
        one.mlp.gate_proj = Int8Linear(one.mlp.gate_proj)
        one.mlp.up_proj = Int8Linear(one.mlp.up_proj)


def torch_quantised(model):
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def head_with_temperature(model):
    class Half(nn.Module):
        def forward(self, x):
            return x / 2

    model.lm_head = nn.Sequential(model.lm_head, Half())


def dropout_in_head(model):
    model.lm_head = nn.Sequential(nn.Dropout(0.5), model.lm_head).eval()


# --- parametrizations


def weight_norm(model):
    linear = layer(model).self_attn.q_proj
    nn.utils.parametrizations.weight_norm(linear)
    with torch.no_grad():
        linear.parametrizations.weight.original0.mul_(0.4)


def old_weight_norm(model):
    linear = nn.utils.weight_norm(layer(model).mlp.up_proj)
    with torch.no_grad():
        linear.weight_g.mul_(3)


def spectral_norm(model):
    nn.utils.parametrizations.spectral_norm(layer(model).self_attn.o_proj)
    model.eval()


def ternary(model):
    for one in model.model.layers:
        parametrize.register_parametrization(one.mlp.down_proj, "weight", Ternary())


def parametrized_norm(model):
    class Exp(nn.Module):
        def forward(self, weight):
            return weight.exp()

    parametrize.register_parametrization(layer(model).input_layernorm, "weight", Exp())


def pruned(model):
    prune.l1_unstructured(layer(model).mlp.gate_proj, "weight", amount=0.7)
    with torch.no_grad():  # training goes on; the pruned weight is made anew at each call
        layer(model).mlp.gate_proj.weight_orig.mul_(2)


# --- attributes


def setting(path, name, value, index=1):
    def change(model):
        setattr(layer(model, index).get_submodule(path), name, value)

    return change


def all_eps(model):
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.variance_epsilon = 0.5


def halved_scaling(model):
    layer(model).self_attn.scaling *= 0.3


def more_kv_heads(model):
    config = copy.deepcopy(model.config)
    config.num_key_value_heads = 6
    torch.manual_seed(9)
    layer(model).self_attn = modeling_llama.LlamaAttention(config, 1).eval()


def fewer_heads(model):
    """Structured pruning: one layer has fewer heads and a narrower MLP than the config says."""
    config = copy.deepcopy(model.config)
    config.num_attention_heads, config.intermediate_size = 4, 40
    torch.manual_seed(9)
    layer(model).self_attn = modeling_llama.LlamaAttention(config, 1).eval()
    layer(model).mlp = LlamaMLP(config).eval()


def slower_rope(model):
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / 4


def attention_scaling_of_rope(model):
    model.model.rotary_emb.attention_scaling = 0.6


def reversed_layers(model):
    model.model.layers = nn.ModuleList(reversed(model.model.layers))


def dropped_layer(model):
    del model.model.layers[0]


def repeated_layer(model):
    model.model.layers.append(model.model.layers[0])
    model.config.num_hidden_layers = 3


def config_with_fewer_layers(model):
    model.config.num_hidden_layers = 1


def shared_mlp(model):
    model.model.layers[1].mlp = model.model.layers[0].mlp


def shared_weights(model):
    first, second = (one.self_attn for one in model.model.layers)
    second.q_proj.weight = first.q_proj.weight
    second.k_proj.weight = first.k_proj.weight


def untied_by_hand(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().roll(5, 0) * 1.5)


def scaled_embedding_class(model):
    class Scaled(nn.Embedding):
        def forward(self, ids):
            return super().forward(ids) * 13.0

    model.model.embed_tokens.__class__ = Scaled


def scaled_embedding_weight(model):
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.1)


def config_changed(**values):
    def change(model):
        for name, value in values.items():
            setattr(model.config, name, value)

    return change


def rope_theta_changed(model):
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}


def bias_in_one_layer(model):
    old = layer(model).self_attn.q_proj
    new = nn.Linear(old.in_features, old.out_features)
    new.weight = old.weight
    new.bias = nn.Parameter(vector(old.out_features))
    layer(model).self_attn.q_proj = new


def bias_taken_away(model):
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(getattr(layer(model).self_attn, name), "bias", None)  # noqa: B010


def no_query_norm(model):
    layer(model).self_attn.q_norm = nn.Identity()


def half_norm_weights(model):
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.weight.data = module.weight.data.to(torch.bfloat16)


def double_layers(model):
    """Embedding in float32 and all else in float64, joined by a hook, as mixed training does."""
    model.double()
    model.model.embed_tokens.float()
    model.model.embed_tokens.register_forward_hook(lambda m, a, out: out.double())


def float32_head(model):
    model.lm_head.float()
    model.lm_head.register_forward_pre_hook(lambda m, a: (a[0].float(),))


def custom_attention(model):
    def tempered(module, query, key, value, mask, **kwargs):
        kwargs["scaling"] = kwargs["scaling"] * 0.5
        return modeling_llama.eager_attention_forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register("unseen_tempered", tempered)
    model.config._attn_implementation = "unseen_tempered"


def gelu_everywhere():
    return {"hidden_act": "gelu"}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


def classifier():
    from tiny_llama import tiny

    model = tiny()
    torch.manual_seed(4)
    head = LlamaForSequenceClassification(model.config).eval()
    head.model = model.model
    return head
