"""Unaltered decoders that must be served, and unusual calls of them."""

from __future__ import annotations

import torch
from tiny_llama import batch, checkpoint_activations, greedy
from torch import nn
from transformers import DynamicCache
from unseen.odd_modules import vector
from unseen.verdicts import Case, forward, no_cache, padded, real, unpadded


def right():
    return batch(9, 14, side="right")


def last_only():
    return padded() | {"logits_to_keep": 1}


def labelled():
    given = batch(12, 12)
    return given | {"labels": given["input_ids"]}


def tokens(model, given):
    return {"tokens": greedy(model, given, new=8)}


def tokens_and_scores(model, given):
    out = greedy(model, given, new=6, output_logits=True, return_dict_in_generate=True)
    return {"tokens": out.sequences, "logits": torch.stack(out.logits)}


def soft_prompt():
    """Prompt tuning: learned rows before the embedded prompt."""
    return {"inputs_embeds": vector((2, 10, 192)), "attention_mask": torch.ones(2, 10).long()}


def soft_prompt_padded():
    mask = torch.ones(2, 10).long()
    mask[0, :3] = 0
    return {"inputs_embeds": vector((2, 10, 192)), "attention_mask": mask}


def generate_from_embeds(model, given):
    return {"tokens": greedy(model, given, new=5)}


def mask_with_a_hole():
    given = padded()
    given["attention_mask"][:, 10:12] = 0
    return given


def float_mask():
    given = padded()
    return given | {"attention_mask": given["attention_mask"].float()}


def bool_mask():
    given = padded()
    return given | {"attention_mask": given["attention_mask"].bool()}


def prefix_mask():
    """A prefix language model: the first six tokens see each other."""
    ids = unpadded()["input_ids"]
    seen = torch.ones(12, 12).tril().bool()
    seen[:6, :6] = True
    bias = torch.zeros(12, 12).masked_fill(~seen, torch.finfo(torch.float32).min)
    return {"input_ids": ids, "attention_mask": bias.expand(2, 1, 12, 12), "use_cache": False}


def positions_stretched():
    ids = unpadded()["input_ids"]
    return {"input_ids": ids, "position_ids": torch.arange(12).expand_as(ids) * 3}


def positions_shifted():
    """Relative positions: the same numbers as without."""
    ids = unpadded()["input_ids"]
    return {"input_ids": ids, "position_ids": torch.arange(12).expand_as(ids) + 30}


def packed():
    """Two samples packed in one row, told apart by position_ids that begin anew."""
    ids = unpadded()["input_ids"][:1]
    positions = torch.cat((torch.arange(7), torch.arange(5)))[None]
    return {"input_ids": ids, "position_ids": positions, "use_cache": False}


def positions_reversed():
    ids = unpadded()["input_ids"]
    return {"input_ids": ids, "position_ids": torch.arange(12).flip(0).expand_as(ids).clone()}


def hidden_states(model, given):
    states = model(**given, output_hidden_states=True).hidden_states
    return {str(i): real(state, given) for i, state in enumerate(states)}


def attentions(model, given):
    model.set_attn_implementation("eager")
    found = model(**given, output_attentions=True).attentions
    return {str(i): one for i, one in enumerate(found)}


def config_asks_hidden_states(model):
    model.config.output_hidden_states = True


def hidden_states_by_config(model, given):
    states = model(**given).hidden_states
    return {str(i): real(state, given) for i, state in enumerate(states)}


def tuples(model, given):
    return {"logits": real(model(**given, return_dict=False)[0], given)}


def filled_cache(model, given):
    """Prefix tuning: learned keys and values before the prompt."""
    cache = DynamicCache(config=model.config)
    for index in range(2):
        cache.update(vector((2, 2, 4, 32)), vector((2, 2, 4, 32), 0.5), index)
    ids = unpadded()["input_ids"]
    return {"logits": model(input_ids=ids, past_key_values=cache).logits}


def gradients(model, given):
    with torch.enable_grad():
        model.zero_grad()
        out = model(**given)
        out.logits.square().mean().backward()
    return {"embedding": model.get_input_embeddings().weight.grad}


def gradient_of_inputs(model, given):
    """Saliency: the gradient with respect to the embedded prompt."""
    with torch.enable_grad():
        embedded = vector((1, 8, 192)).requires_grad_()
        model(inputs_embeds=embedded, use_cache=False).logits.square().mean().backward()
    return {"inputs": embedded.grad}


def train_with_dropout(model):
    model.train()


def checkpointed(model):
    checkpoint_activations(model)
    model.train()


def one_layer_in_train(model):
    model.model.layers[1].self_attn.train()


def base_only(model):
    return model.model


def compiled_before(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")


def compiled_layer(model):
    model.model.layers[1].compile(backend="eager")


class Wrapped(nn.Module):
    """A user's own module around the model."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, **given):
        out = self.inner(**given)
        out.logits = out.logits * 0.5
        return out


def data_parallel(model):
    return nn.DataParallel(model)


def eager_later(model):
    model.set_attn_implementation("eager")


def two_prompts_one_cache(model, given):
    """A second turn with several tokens on the cache of the first."""
    first = model(**unpadded())
    more = batch(5, 5, seed=8)["input_ids"]
    return {"turn 2": model(input_ids=more, past_key_values=first.past_key_values).logits}


def deep_copy_of_cache(model, given):
    """The cache of a shared prefix is copied for each continuation, as best-of-n does."""
    import copy

    first = model(**unpadded())
    found = {}
    for token in (7, 9):
        cache = copy.deepcopy(first.past_key_values)
        out = model(input_ids=torch.full((2, 1), token), past_key_values=cache)
        found[str(token)] = out.logits
    return found


def windows():
    return {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}


CASES = [
    Case("unaltered llama, padded at the left", served=True),
    Case("unaltered llama, padded at the right", given=right, read=forward, served=True),
    Case("unaltered llama, no mask", given=unpadded, served=True),
    Case("unaltered llama, no cache", given=no_cache, served=True),
    Case("unaltered llama, tied", config={"tie_word_embeddings": True}, served=True),
    Case("unaltered llama, one KV head", config={"kv_heads": 1}, served=True),
    Case("unaltered llama, head size 20", config={"head_size": 20}, served=True),
    Case("unaltered qwen2", kind="qwen2", served=True),
    Case("unaltered qwen2, windows", kind="qwen2", config=windows(), served=True),
    Case("unaltered qwen3", kind="qwen3", served=True),
    Case("unaltered llama, greedy tokens", read=tokens_and_scores, served=True),
    Case("unaltered qwen3, greedy tokens", kind="qwen3", read=tokens, served=True),
    Case("unaltered llama, loss of labels", given=labelled, read=forward, served=True),
    Case("unaltered llama, last logits alone", given=last_only, read=forward, served=True),
    Case("unaltered llama, tuples", read=tuples, served=True),
    Case("unaltered llama, second turn", read=two_prompts_one_cache, served=True),
    Case("base model alone", base_only, names=("base", "model")),
    Case("call: inputs_embeds", given=soft_prompt, names=("embed",)),
    Case(
        "call: inputs_embeds with a mask", given=soft_prompt_padded, read=forward, names=("embed",)
    ),
    Case(
        "call: generate from inputs_embeds",
        given=soft_prompt,
        read=generate_from_embeds,
        names=("embed",),
    ),
    Case("call: mask with a hole", given=mask_with_a_hole, read=forward, names=("mask",)),
    Case("call: float mask", given=float_mask, names=("mask",)),
    Case("call: bool mask", given=bool_mask, names=("mask",)),
    Case("call: 4-D mask of a prefix model", given=prefix_mask, names=("mask",)),
    Case(
        "call: position_ids stretched",
        given=positions_stretched,
        read=forward,
        names=("position",),
    ),
    Case("call: position_ids shifted", given=positions_shifted, read=forward, names=("position",)),
    Case(
        "call: position_ids reversed", given=positions_reversed, read=forward, names=("position",)
    ),
    Case("call: packed by position_ids", given=packed, names=("position", "packed")),
    Case("call: all hidden states", read=hidden_states, names=("hidden",)),
    Case("call: attentions", read=attentions, names=("attention",)),
    Case(
        "config asks for hidden states",
        config_asks_hidden_states,
        read=hidden_states_by_config,
        inert=True,
        names=("hidden",),
    ),
    Case("cache: filled by prefix tuning", read=filled_cache, names=("cache",)),
    Case("cache: copied for two continuations", read=deep_copy_of_cache, names=("cache", "cop")),
    Case(
        "gradients of the weights",
        read=gradients,
        given=unpadded,
        names=("grad", "inference", "train"),
    ),
    Case(
        "gradients of inputs_embeds",
        read=gradient_of_inputs,
        names=("grad", "inference", "train", "embed"),
    ),
    Case(
        "train mode with dropout",
        train_with_dropout,
        config={"attention_dropout": 0.4},
        names=("train", "dropout", "inference"),
    ),
    Case(
        "train mode, checkpointed",
        checkpointed,
        given=no_cache,
        inert=True,
        names=("train", "inference"),
    ),
    Case(
        "one attention in train mode",
        one_layer_in_train,
        config={"attention_dropout": 0.4},
        names=("train", "dropout", "inference"),
    ),
    Case(
        "compiled: torch.compile before",
        compiled_before,
        inert=True,
        names=("compile", "optimized"),
    ),
    Case("compiled: model.compile before", compiled_in_place, inert=True, names=("compile",)),
    Case("compiled: one layer before", compiled_layer, inert=True, names=("compile", "layer")),
    Case("wrapped in a module of one's own", Wrapped, names=("wrapped", "model")),
    Case("wrapped in DataParallel", data_parallel, inert=True, names=("dataparallel",)),
    Case("attention set to eager later", eager_later, inert=True, names=("eager", "attention")),
]
