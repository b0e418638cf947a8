"""Ways in which people alter a BERT before adapt()."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from transformers import BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification
from transformers.models.bert.modeling_bert import BertIntermediate, BertSelfOutput
from unseen.alterations import replaced
from unseen.odd_modules import Lora, Ternary, vector
from unseen.verdicts import Case, padded, tiny_bert, unpadded


def layer(model, index=1):
    return getattr(model, "bert", model).encoder.layer[index]


def right():
    from tiny_llama import batch

    return batch(9, 14, side="right")


def steering(model):
    layer(model, 0).register_forward_hook(lambda m, a, out: _first(out, lambda x: x + vector(64)))


def _first(out, change):
    return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)


def hook_on_query(model):
    layer(model).attention.self.query.register_forward_hook(lambda m, a, out: out * 0.2)


def hook_on_norm(model):
    layer(model).output.LayerNorm.register_forward_hook(lambda m, a, out: out * 2)


def hook_on_embeddings(model):
    model.embeddings.register_forward_hook(lambda m, a, out: out * 0.5)


def hook_on_word_embeddings(model):
    model.embeddings.word_embeddings.register_forward_hook(lambda m, a, out: out + vector(64))


def pre_hook_on_pooler(model):
    model.pooler.dense.register_forward_pre_hook(lambda m, args: (args[0].relu(),))


def patched_intermediate(model):
    one = layer(model).intermediate
    one.forward = lambda x: F.relu(one.dense(x))


def patched_chunk(model):
    one = layer(model)
    one.feed_forward_chunk = lambda x: one.output(one.intermediate(x) * 0.3, x)


def pre_norm_class():
    """All BertSelfOutput lose their residual, by a patch of the class."""

    def forward(self, hidden, given):
        return self.LayerNorm(self.dense(hidden))

    return replaced(BertSelfOutput, "forward", forward)


class SquaredRelu(nn.Module):
    def forward(self, x):
        return x.relu().square()


class Halved(BertIntermediate):
    def forward(self, x):
        return super().forward(x) / 2


def other_activation(model):
    layer(model).intermediate.intermediate_act_fn = SquaredRelu()


def subclassed(model):
    layer(model).intermediate.__class__ = Halved


def rms_for_layer_norm(model):
    norm = nn.RMSNorm(64, eps=1e-5)
    norm.weight = layer(model).output.LayerNorm.weight
    layer(model).output.LayerNorm = norm


def other_eps(model):
    layer(model).attention.output.LayerNorm.eps = 0.4


def eps_of_embeddings(model):
    model.embeddings.LayerNorm.eps = 0.4


def other_scaling(model):
    layer(model).attention.self.scaling *= 0.2


def causal(model):
    for one in model.encoder.layer:
        one.attention.self.is_causal = True


def shifted_positions(model):
    """RoBERTa begins at position 2."""
    model.embeddings.position_ids = model.embeddings.position_ids.roll(-2, 1)


def other_types(model):
    model.embeddings.token_type_ids = torch.ones_like(model.embeddings.token_type_ids)


def lora(model):
    layer(model).attention.self.query = Lora(layer(model).attention.self.query)


def parametrized(model):
    parametrize.register_parametrization(layer(model).output.dense, "weight", Ternary())


def dropped_layer(model):
    del model.encoder.layer[0]


def shared_layers(model):
    """ALBERT's way."""
    model.encoder.layer[1] = model.encoder.layer[0]


def dropout_raised(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5


def dropout_in_train(model):
    dropout_raised(model)
    model.train()


def always_dropped(model):
    """Monte-Carlo dropout: one dropout stays on in eval."""
    layer(model).output.dropout.train()


def bias_removed(model):
    layer(model).attention.self.key.bias = None
    layer(model).intermediate.dense.bias = None


def pooler_is_relu(model):
    model.pooler.activation = nn.ReLU()


def norm_without_affine(model):
    layer(model).output.LayerNorm = nn.LayerNorm(64, elementwise_affine=False, eps=1e-12)


def masked_lm():
    return tiny_bert(BertForMaskedLM)


def sequence_classifier():
    return tiny_bert(BertForSequenceClassification, num_labels=3)


def token_classifier():
    return tiny_bert(BertForTokenClassification, num_labels=3)


def with_types():
    given = right()
    types = torch.zeros_like(given["input_ids"])
    types[:, 5:] = 1
    return given | {"token_type_ids": types}


def with_positions():
    ids = right()["input_ids"]
    return right() | {"position_ids": torch.arange(ids.shape[1]).flip(0).expand_as(ids)}


def embedded():
    given = right()
    shape = (*given["input_ids"].shape, 64)
    return {"inputs_embeds": vector(shape), "attention_mask": given["attention_mask"]}


def mask_of_rows():
    """UniLM's and packed training's mask: who sees whom, [batch, 1, query, key]."""
    ids = unpadded()["input_ids"]
    mask = torch.ones(ids.shape[0], 1, ids.shape[1], ids.shape[1]).bool()
    mask[:, :, :6, 6:] = False
    return {"input_ids": ids, "attention_mask": mask}


def hidden_states(model, given):
    states = model(**given, output_hidden_states=True).hidden_states
    return {str(i): state[given["attention_mask"].bool()] for i, state in enumerate(states)}


HOOK = ("hook",)
CASES = [
    Case(
        f"bert {case.name}",
        **{
            **{
                f: getattr(case, f) for f in Case.__dataclass_fields__ if f not in ("name", "kind")
            },
            "kind": "bert",
            "given": case.given or right,
        },
    )
    for case in [
        Case("hook: steering vector on a layer", steering, names=HOOK),
        Case("hook: on query", hook_on_query, names=HOOK),
        Case("hook: on a norm", hook_on_norm, names=HOOK),
        Case("hook: on the embeddings", hook_on_embeddings, names=HOOK),
        Case("hook: on the word embeddings", hook_on_word_embeddings, names=HOOK),
        Case("hook: pre-hook in the pooler", pre_hook_on_pooler, names=HOOK),
        Case("patched: intermediate.forward", patched_intermediate, names=("forward", "interm")),
        Case("patched: feed_forward_chunk", patched_chunk, names=("feed_forward", "layer")),
        Case("patched: BertSelfOutput.forward", world=pre_norm_class, names=("forward", "output")),
        Case("module: squared relu in one layer", other_activation, names=("act", "squared")),
        Case("module: subclassed intermediate", subclassed, names=("interm", "halved")),
        Case("module: RMSNorm for LayerNorm", rms_for_layer_norm, names=("norm",)),
        Case("module: LayerNorm without weights", norm_without_affine, names=("norm",)),
        Case("module: pooler's activation", pooler_is_relu, names=("pooler", "act")),
        Case("eps of one norm", other_eps, names=("eps", "norm")),
        Case("eps of the embeddings' norm", eps_of_embeddings, names=("eps", "norm")),
        Case("scaling of one attention", other_scaling, names=("scal",)),
        Case("is_causal on", causal, given=unpadded, names=("causal",)),
        Case("buffers: position_ids shifted", shifted_positions, names=("position",)),
        Case("buffers: token_type_ids are ones", other_types, names=("type",)),
        Case("LoRA by hand", lora, names=("lora", "query")),
        Case(
            "parametrized: ternary weights", parametrized, names=("parametri", "dense", "weight")
        ),
        Case("layers: first one dropped", dropped_layer, names=("layer",)),
        Case("layers: one shared", shared_layers, names=("layer", "shared")),
        Case("dropout raised, in eval", dropout_raised, inert=True, names=("dropout",)),
        Case("dropout in train mode", dropout_in_train, names=("train", "dropout", "inference")),
        Case(
            "dropout of one module on in eval",
            always_dropped,
            names=("train", "dropout", "inference"),
        ),
        Case("biases removed in one layer", bias_removed, names=("bias",)),
        Case("config: gelu_new", config={"hidden_act": "gelu_new"}, names=("gelu", "act")),
        Case(
            "config: chunked feed forward", config={"chunk_size_feed_forward": 1}, given=unpadded
        ),
        Case(
            "config: no pooler",
            config={"add_pooling_layer": False},
            make=lambda: tiny_bert(
                lambda config: __import__("transformers").BertModel(
                    config, add_pooling_layer=False
                )
            ),
        ),
        Case("head: masked language model", make=masked_lm),
        Case("head: sequence classifier", make=sequence_classifier),
        Case("head: token classifier", make=token_classifier),
        Case("unaltered, padded at the right", served=True),
        Case("unaltered, padded at the left", given=padded, served=True),
        Case("unaltered, two token types", given=with_types, served=True),
        Case("call: position_ids reversed", given=with_positions, names=("position",)),
        Case("call: inputs_embeds", given=embedded, names=("embed",)),
        Case("call: 4-D mask", given=mask_of_rows, names=("mask",)),
        Case("call: all hidden states", read=hidden_states, names=("hidden",)),
    ]
]
