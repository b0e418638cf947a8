"""From a model's shape to its tensors. No weights are read.

Names are those of the published checkpoints, so that a list of them can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_adapter.planning.model_shape import ExpertShape, LatentShape, ModelSizes
from vllm_adapter.planning.tensors import Split, TensorGroup


def tensors_of(model: ModelSizes) -> tuple[TensorGroup, ...]:
    """All tensors of a model, in groups of one shape."""
    return tuple(_encoder(model) if model.family.encoder else _decoder(model))


def _decoder(model: ModelSizes) -> Iterator[TensorGroup]:
    every = range(model.layers)
    yield _vector("embed_tokens", (model.vocab, model.hidden), split="vocab")
    yield from _latent(model, model.latent) if model.latent else _attention(model)
    sparse = model.experts.layers if model.experts else ()
    dense = [layer for layer in every if layer not in set(sparse)]
    if dense:
        yield from _mlp("mlp.", model.hidden, model.width, dense, bias=model.mlp_bias)
    if model.experts is not None and sparse:
        yield from _experts(model, model.experts)
    for name in _NORMS[model.family.norms]:
        yield _vector(f"layers.{{layer}}.{name}", (model.hidden,), every)
    yield _vector("norm", (model.hidden,))
    if model.head and not model.tied:
        yield TensorGroup(
            "lm_head", (model.vocab, model.hidden), linear=False, split="vocab", product=True
        )


_NORMS = {
    2: ("input_layernorm", "post_attention_layernorm"),
    4: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}


def _attention(model: ModelSizes) -> Iterator[TensorGroup]:
    every, at = range(model.layers), "layers.{layer}.self_attn."
    query, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    for name, rows, split in (
        ("q_proj", query, "column"),
        ("k_proj", keys, "kv"),
        ("v_proj", keys, "kv"),
    ):
        yield TensorGroup(f"{at}{name}", (rows, model.hidden), every, split=_split(split))
        if model.qkv_bias:
            yield _vector(f"{at}{name}.bias", (rows,), every, split=_split(split))
    yield TensorGroup(f"{at}o_proj", (model.hidden, query), every, split="row")
    if model.out_bias:
        yield _vector(f"{at}o_proj.bias", (model.hidden,), every)
    if model.family.head_norm:
        for name in ("q_norm", "k_norm"):
            yield _vector(f"{at}{name}", (model.head_dim,), every)


def _latent(model: ModelSizes, sizes: LatentShape) -> Iterator[TensorGroup]:
    every, at = range(model.layers), "layers.{layer}.self_attn."
    query = model.heads * (sizes.nope + sizes.rope)
    if sizes.query_rank is None:
        yield TensorGroup(f"{at}q_proj", (query, model.hidden), every, split="column")
    else:
        yield TensorGroup(f"{at}q_a_proj", (sizes.query_rank, model.hidden), every)
        yield _vector(f"{at}q_a_layernorm", (sizes.query_rank,), every)
        yield TensorGroup(f"{at}q_b_proj", (query, sizes.query_rank), every, split="column")
        if model.qkv_bias:
            yield _vector(f"{at}q_a_proj.bias", (sizes.query_rank,), every)
    yield TensorGroup(f"{at}kv_a_proj_with_mqa", (sizes.rank + sizes.rope, model.hidden), every)
    if model.qkv_bias:
        yield _vector(f"{at}kv_a_proj_with_mqa.bias", (sizes.rank + sizes.rope,), every)
    yield _vector(f"{at}kv_a_layernorm", (sizes.rank,), every)
    values = model.heads * (sizes.nope + sizes.value)
    yield TensorGroup(f"{at}kv_b_proj", (values, sizes.rank), every, split="column")
    out = model.heads * sizes.value
    yield TensorGroup(f"{at}o_proj", (model.hidden, out), every, split="row")
    if model.out_bias:
        yield _vector(f"{at}o_proj.bias", (model.hidden,), every)


def _mlp(
    name: str, hidden: int, width: int, layers: Sequence[int], *, bias: bool, experts: int = 1
) -> Iterator[TensorGroup]:
    split: Split = "experts" if experts > 1 else "column"
    back: Split = "experts" if experts > 1 else "row"
    for part in ("gate_proj", "up_proj"):
        at = f"layers.{{layer}}.{name}{part}"
        yield TensorGroup(at, (width, hidden), layers, experts, split=split)
        if bias:
            yield _vector(f"{at}.bias", (width,), layers, split="column")
    at = f"layers.{{layer}}.{name}down_proj"
    yield TensorGroup(at, (hidden, width), layers, experts, split=back)
    if bias:
        yield _vector(f"{at}.bias", (hidden,), layers)


def _experts(model: ModelSizes, sizes: ExpertShape) -> Iterator[TensorGroup]:
    layers, gate = sizes.layers, "layers.{layer}.mlp.gate"
    mixtral = model.family.name == "mixtral"
    if mixtral:
        gate = "layers.{layer}.block_sparse_moe.gate"
    yield TensorGroup(gate, (sizes.count, model.hidden), layers, linear=False, product=True)
    if model.family.name == "deepseek_v3":
        at = f"{gate}.e_score_correction_bias"
        yield TensorGroup(at, (sizes.count,), layers, linear=False, dtype="float32")
    at = "block_sparse_moe.experts.{expert}." if mixtral else "mlp.experts.{expert}."
    yield from _mlp(at, model.hidden, sizes.width, layers, bias=False, experts=sizes.count)
    if sizes.shared_width:
        latent = model.family.latent
        at = "mlp.shared_experts." if latent else "mlp.shared_expert."
        yield from _mlp(at, model.hidden, sizes.shared_width, layers, bias=False)
    if model.family.shared_gate:
        at = "layers.{layer}.mlp.shared_expert_gate"
        yield TensorGroup(at, (1, model.hidden), layers, linear=False, product=True)


def _encoder(model: ModelSizes) -> Iterator[TensorGroup]:
    every, hidden = range(model.layers), model.hidden
    yield _vector("embeddings.word_embeddings", (model.vocab, hidden), split="vocab")
    yield _vector("embeddings.position_embeddings", (model.positions, hidden))
    yield _vector("embeddings.token_type_embeddings", (model.types, hidden))
    for part in ("weight", "bias"):
        yield _vector(f"embeddings.LayerNorm.{part}", (hidden,))
    for name, rows, columns, split in (
        ("attention.self.query", hidden, hidden, "column"),
        ("attention.self.key", hidden, hidden, "column"),
        ("attention.self.value", hidden, hidden, "column"),
        ("attention.output.dense", hidden, hidden, "row"),
        ("intermediate.dense", model.width, hidden, "column"),
        ("output.dense", hidden, model.width, "row"),
    ):
        at = f"encoder.layer.{{layer}}.{name}"
        yield TensorGroup(at, (rows, columns), every, split=_split(split))
        yield _vector(f"{at}.bias", (rows,), every, split="none" if split == "row" else "column")
    for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
        for part in ("weight", "bias"):
            yield _vector(f"encoder.layer.{{layer}}.{norm}.{part}", (hidden,), every)
    if model.pooler:
        yield TensorGroup("pooler.dense", (hidden, hidden), linear=False, product=True)
        yield _vector("pooler.dense.bias", (hidden,))


def _vector(
    name: str, shape: tuple[int, ...], layers: Sequence[int] = (0,), *, split: Split = "none"
) -> TensorGroup:
    return TensorGroup(name, shape, layers, linear=False, split=split)


def _split(word: str) -> Split:
    known: dict[str, Split] = {"column": "column", "row": "row", "kv": "kv", "none": "none"}
    return known[word]
