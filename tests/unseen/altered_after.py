"""What people do to a model after adapt()."""

from __future__ import annotations

import copy
import io
import tempfile

import torch
from tiny_llama import tiny
from torch import nn
from transformers import AutoModelForCausalLM
from unseen.altered_encoders import right
from unseen.odd_modules import Lora, vector
from unseen.verdicts import Case, NoTarget, no_cache, unpadded

from vllm_adapter.engine.integrations.transformers import adapt, unadapt


def half(model):
    model.half()


def to_bfloat16(model):
    model.to(torch.bfloat16)


def to_float64(model):
    model.to(torch.float64)


def there_and_back(model):
    model.double()
    model.float()


def nothing_much(model):
    model.eval()
    model.float()
    model.to("cpu")
    model.requires_grad_(False)


def other_weights(model):
    model.load_state_dict(tiny(seed=11).state_dict())


def other_weights_assigned(model):
    model.load_state_dict(tiny(seed=11).state_dict(), assign=True)


def some_weights(model):
    """A checkpoint of one layer, as fine-tuning of some layers saves it."""
    part = {k: v for k, v in tiny(seed=11).state_dict().items() if ".layers.1." in k}
    result = model.load_state_dict(part, strict=False)
    if result.unexpected_keys:
        raise NoTarget(f"unexpected keys {result.unexpected_keys[:2]}")


def resized(model):
    torch.manual_seed(6)
    model.resize_token_embeddings(140, mean_resizing=False)


def smaller(model):
    model.resize_token_embeddings(128 - 20, mean_resizing=False)


def few_tokens():
    ids = unpadded()["input_ids"]
    return {"input_ids": ids % 100}


def input_embeddings_set(model):
    new = nn.Embedding(128, 192)
    new.weight.data = vector((128, 192), 0.3)
    model.set_input_embeddings(new)


def output_embeddings_set(model):
    new = nn.Linear(192, 128, bias=False)
    new.weight.data = vector((128, 192), 0.3)
    model.set_output_embeddings(new)


def head_weight_written(model):
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(2)


def embedding_weight_written(model):
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.2)


def all_written(model):
    """Weight decay, noise, averaging: what goes over all parameters by itself."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.8)


def averaged_by_name(model):
    """Model soup: the parameters of another model are mixed in by their names."""
    other = dict(tiny(seed=11).named_parameters())
    mine = dict(model.named_parameters())
    if mine.keys() != other.keys():
        raise NoTarget(f"{len(mine)} parameters and not {len(other)}")
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.mul_(0.5).add_(other[name], alpha=0.5)


def keep_handles(model):
    model.__dict__["kept"] = [one.self_attn.q_proj.weight for one in model.model.layers]


def written_by_handle(model):
    with torch.no_grad():
        for weight in model.__dict__["kept"]:
            weight.mul_(0.3)


def keep_module(model):
    model.__dict__["kept"] = model.model.layers[0]


def hook_by_old_handle(model):
    """The hook goes on a layer that the user got hold of before adapt."""
    model.__dict__["kept"].register_forward_hook(lambda m, a, out: out * 0.5)


def linears(model, *names):
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in list(parent.named_children())
        if name in names and isinstance(child, nn.Linear)
    ]
    if not found:
        raise NoTarget(f"no Linear is called {' or '.join(names)}")
    return found


def lora(model):
    for parent, name, child in linears(model, "q_proj", "v_proj"):
        setattr(parent, name, Lora(child))


def lora_on_head(model):
    model.lm_head = Lora(model.lm_head) if isinstance(model.lm_head, nn.Linear) else _missing()


def _missing():
    raise NoTarget("lm_head is no Linear")


def layer_hook(model):
    model.model.layers[0].register_forward_hook(
        lambda m, a, out: (out[0] * 0.5, *out[1:]) if isinstance(out, tuple) else out * 0.5
    )


def layer_pre_hook(model):
    model.model.layers[1].register_forward_pre_hook(lambda m, a: (a[0] * 0.5, *a[1:]))


def norm_hook(model):
    model.model.norm.register_forward_hook(lambda m, a, out: out * 2)


def head_hook(model):
    model.lm_head.register_forward_hook(lambda m, a, out: out * 2)


def rope_hook(model):
    model.model.rotary_emb.register_forward_hook(lambda m, a, out: (out[0] * 0.5, out[1] * 0.5))


def rope_buffer(model):
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / 3


def early_exit(model):
    model.model.layers = model.model.layers[:1]


def config_with_fewer_layers(model):
    model.config.num_hidden_layers = 1


def reversed_layers(model):
    model.model.layers = nn.ModuleList(reversed(model.model.layers))


def layer_replaced(model):
    model.model.layers[1] = tiny(seed=12).model.layers[1]


def norm_replaced(model):
    model.model.norm = nn.LayerNorm(192)


def head_replaced(model):
    model.lm_head = nn.Sequential(nn.Linear(192, 128), nn.ReLU())
    torch.manual_seed(2)
    nn.init.normal_(model.lm_head[0].weight)
    nn.init.zeros_(model.lm_head[0].bias)


def in_train_mode(model):
    model.train()


def attention_set_to_eager(model):
    model.set_attn_implementation("eager")


def compiled(model):
    return torch.compile(model, backend="eager")


def copied(model):
    return copy.deepcopy(model)


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def saved_and_loaded(model):
    """save_pretrained of a model in use, and what a plain process reads back."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def state_into_a_plain_one(model):
    other = tiny(seed=21)
    other.load_state_dict(model.state_dict())
    return other


def dequantised_there(model):
    """Undone, altered, and adapted again."""
    if "_vllm_adapter" in model.__dict__:
        unadapt(model)
        layer_hook(model)
        adapt(model, "cpu")
    else:
        layer_hook(model)


def undone(model):
    if "_vllm_adapter" in model.__dict__:
        unadapt(model)


def undone_and_written(model):
    undone(model)
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(3)
        model.model.layers[1].mlp.up_proj.weight.mul_(0.5)


def undone_and_again(model):
    if "_vllm_adapter" in model.__dict__:
        for _ in range(2):
            unadapt(model)
            adapt(model, "cpu")


def undone_half_again(model):
    adapted = "_vllm_adapter" in model.__dict__
    undone(model)
    model.double()
    if adapted:
        adapt(model, "cpu")


def twice(model):
    adapt(model, "cpu")
    return adapt(model, "cpu")


def base_and_whole(model):
    adapt(model.model, "cpu")
    return adapt(model, "cpu")


def bert_layer_hook(model):
    model.encoder.layer[0].register_forward_hook(
        lambda m, a, out: (out[0] * 2, *out[1:]) if isinstance(out, tuple) else out * 2
    )


def bert_resized(model):
    torch.manual_seed(6)
    model.resize_token_embeddings(140, mean_resizing=False)


def bert_other_weights(model):
    from unseen.verdicts import tiny_bert

    model.load_state_dict(tiny_bert(seed=11).state_dict())


COARSE = 0.06
HOOK = ("hook",)
DTYPE = ("dtype", "float", "half")
CASES = [
    Case("after: no-ops (eval, float, to cpu)", after=nothing_much, inert=True, served=True),
    Case("after: half()", after=half, inert=True, given=no_cache, names=DTYPE, tolerance=COARSE),
    Case(
        "after: to(bfloat16)",
        after=to_bfloat16,
        inert=True,
        given=no_cache,
        names=DTYPE,
        tolerance=0.5,
    ),
    Case("after: to(float64)", after=to_float64, inert=True, names=DTYPE),
    Case("after: double() and float() again", after=there_and_back, inert=True, names=DTYPE),
    Case("after: load_state_dict", after=other_weights),
    Case("after: load_state_dict, assigned", after=other_weights_assigned),
    Case("after: load_state_dict of one layer", after=some_weights),
    Case("after: more tokens", after=resized),
    Case("after: fewer tokens", after=smaller, given=few_tokens),
    Case("after: input embeddings set", after=input_embeddings_set),
    Case("after: output embeddings set", after=output_embeddings_set),
    Case("after: head's weight written", after=head_weight_written),
    Case(
        "after: head's weight written, tied",
        after=head_weight_written,
        config={"tie_word_embeddings": True},
    ),
    Case("after: embedding's weight written", after=embedding_weight_written),
    Case("after: all parameters written", after=all_written),
    Case("after: averaged by name", after=averaged_by_name),
    Case("after: written by an old handle", keep_handles, after=written_by_handle),
    Case("after: hook by an old handle", keep_module, after=hook_by_old_handle, names=HOOK),
    Case("after: LoRA by hand", after=lora),
    Case("after: LoRA on the head", after=lora_on_head),
    Case("after: hook on a layer", after=layer_hook, names=HOOK),
    Case("after: pre-hook on a layer", after=layer_pre_hook, names=HOOK),
    Case("after: hook on the final norm", after=norm_hook, names=HOOK),
    Case("after: hook on the head", after=head_hook, names=HOOK),
    Case("after: hook on rotary_emb", after=rope_hook, names=HOOK),
    Case("after: inv_freq replaced", after=rope_buffer),
    Case("after: layers cut to one", after=early_exit, names=("layer",)),
    Case("after: config says one layer", after=config_with_fewer_layers, names=("layer",)),
    Case("after: layers reversed", after=reversed_layers, names=("layer",)),
    Case("after: one layer replaced", after=layer_replaced, given=no_cache, names=("layer",)),
    Case("after: norm replaced", after=norm_replaced, names=("norm",)),
    Case("after: head replaced", after=head_replaced),
    Case(
        "after: train() with dropout",
        after=in_train_mode,
        config={"attention_dropout": 0.4},
        names=("train", "dropout", "inference"),
    ),
    Case("after: attention set to eager", after=attention_set_to_eager, inert=True),
    Case("after: torch.compile", after=compiled, inert=True, given=unpadded),
    Case("after: deepcopy", after=copied, inert=True),
    Case("after: torch.save and load", after=pickled, inert=True),
    Case("after: save_pretrained and load", after=saved_and_loaded, inert=True),
    Case("after: state_dict into a plain one", after=state_into_a_plain_one, inert=True),
    Case("after: unadapt", after=undone, inert=True, served=True),
    Case("after: unadapt, weights written", after=undone_and_written, served=True),
    Case("after: unadapt and adapt, twice", after=undone_and_again, inert=True, served=True),
    Case("after: unadapt, double, adapt", after=undone_half_again, inert=True, names=DTYPE),
    Case("after: unadapt, hook, adapt", after=dequantised_there, names=HOOK),
    Case("adapt called twice", adapt=twice, names=("adapted", "already")),
    Case(
        "adapt of the base, then of the whole", adapt=base_and_whole, names=("adapted", "already")
    ),
    Case(
        "after: bert, hook on a layer", after=bert_layer_hook, kind="bert", given=right, names=HOOK
    ),
    Case(
        "after: bert, half()", after=half, kind="bert", given=right, inert=True, tolerance=COARSE
    ),
    Case("after: bert, more tokens", after=bert_resized, kind="bert", given=right, inert=True),
    Case("after: bert, load_state_dict", after=bert_other_weights, kind="bert", given=right),
    Case("after: bert, all parameters written", after=all_written, kind="bert", given=right),
    Case("after: bert, unadapt", after=undone, kind="bert", given=right, inert=True, served=True),
]
