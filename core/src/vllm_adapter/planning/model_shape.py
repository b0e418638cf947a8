"""A model's shape, read from its config: sizes that are whole numbers, or one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter.files import shown
from vllm_adapter.planning.dtypes import named
from vllm_adapter.planning.families import ALIASES, FAMILIES, Family, Flag

_MOST: Final = 1 << 40
"""No size of a model comes near."""


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of multi-head latent attention; `query_rank` is None where queries are not reduced."""

    query_rank: int | None
    rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Experts of a layer: how many, their width, how many serve a token, the shared width."""

    count: int
    width: int
    each_token: int
    shared_width: int
    layers: tuple[int, ...]
    """The layers that have experts."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What the arithmetic needs of a model. `windows` has each layer's window, 0 for none."""

    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    positions: int
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    windows: tuple[int, ...]
    soft_cap: float
    dtype: str
    head: bool
    latent: LatentShape | None = None
    experts: ExpertShape | None = None
    types: int = 0
    pooler: bool = False

    @property
    def gqa_ratio(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads


def shape_of(config: Mapping[str, Any], origin: str) -> ModelSizes:
    """The shape that a config tells.

    Raises:
        InputError: a family that is not known, or a size that is missing or no size.
    """
    return _ConfigReader(config, origin).shape()


class _ConfigReader:
    def __init__(self, config: Mapping[str, Any], origin: str) -> None:
        if not isinstance(config, Mapping):
            raise InputError(f"{origin} is no JSON object", hint="give a model's config.json")
        kind = config.get("model_type")
        name = ALIASES.get(str(kind), str(kind))
        if name not in FAMILIES:
            inner = config.get("text_config")
            more = " with more than text" if isinstance(inner, Mapping) else ""
            raise InputError(
                f"{origin}: the planner knows no model_type {shown(kind)}{more}",
                hint=f"it knows {', '.join(FAMILIES)}",
            )
        self.family = FAMILIES[name]
        self.config = {**self.family.defaults, **config}
        self.origin = origin

    def shape(self) -> ModelSizes:
        family = self.family
        layers = self.size("num_hidden_layers", most=10_000)
        hidden = self.size("hidden_size")
        heads = self.size("num_attention_heads")
        kv_heads = heads if family.encoder else self.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise self.bad(f"{heads} query heads are no multiple of {kv_heads} KV heads")
        if self.config.get("head_dim") is None and hidden % heads and not family.latent:
            raise self.bad(f"hidden_size {hidden} is no multiple of {heads} heads")
        head_dim = self.size("head_dim", hidden // heads or 1)
        architectures = self.config.get("architectures") or [""]
        name = str(architectures[0]) if isinstance(architectures, (list, tuple)) else ""
        return ModelSizes(
            family,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            self.size("intermediate_size"),
            self.size("vocab_size"),
            self.size("max_position_embeddings", 2048),
            bool(self.value("tie_word_embeddings", family.tied)),
            self.flag(family.qkv_bias),
            self.flag(family.out_bias),
            self.flag(family.mlp_bias),
            self.windows(layers),
            float(self.value("attn_logit_softcapping", 0.0)) if family.soft_cap else 0.0,
            named(str(self.value("dtype", self.value("torch_dtype", "float32")))),
            head=not family.encoder and not (name.endswith("Model") and name != ""),
            latent=self.latent() if family.latent else None,
            experts=self.experts(layers),
            types=self.size("type_vocab_size", 2) if family.encoder else 0,
            pooler=family.encoder,
        )

    def latent(self) -> LatentShape:
        query = self.value("q_lora_rank", None)
        return LatentShape(
            None if query is None else self.size("q_lora_rank"),
            self.size("kv_lora_rank"),
            self.size("qk_nope_head_dim"),
            self.size("qk_rope_head_dim"),
            self.size("v_head_dim"),
        )

    def experts(self, layers: int) -> ExpertShape | None:
        keys = self.family.experts
        if keys is None or self.value(keys[0], None) is None:
            return None
        count, width, each = (self.size(key) for key in keys)
        if each > count:
            raise self.bad(f"{each} of {count} experts serve a token")
        shared = 0
        if self.family.shared == "n_shared_experts":
            shared = width * self.size("n_shared_experts", 0, least=0)
        elif self.family.shared:
            shared = self.size(self.family.shared, 0, least=0)
        return ExpertShape(count, width, each, shared, self.sparse(layers))

    def sparse(self, layers: int) -> tuple[int, ...]:
        if self.family.latent:
            first = self.size("first_k_dense_replace", 0, least=0)
            every = self.size("moe_layer_freq", 1)
            return tuple(i for i in range(layers) if i >= first and i % every == 0)
        dense = self.value("mlp_only_layers", None) or ()
        step = self.size("decoder_sparse_step", 1)
        return tuple(i for i in range(layers) if i not in dense and (i + 1) % step == 0)

    def windows(self, layers: int) -> tuple[int, ...]:
        family = self.family
        asked = family.window == "always" or (
            family.window == "asked" and bool(self.value("use_sliding_window", False))
        )
        if not asked or self.value("sliding_window", None) is None:
            return (0,) * layers
        size = self.size("sliding_window")
        kinds = self.value("layer_types", None)
        if isinstance(kinds, list) and len(kinds) == layers:
            return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)
        if family.window == "asked":
            first = self.size("max_window_layers", layers, least=0)
            return tuple(size if i >= first else 0 for i in range(layers))
        every = self.size("sliding_window_pattern", family.window_every)
        if every == 1:
            return (size,) * layers
        return tuple(0 if (i + 1) % every == 0 else size for i in range(layers))

    def flag(self, given: Flag) -> bool:
        return given if isinstance(given, bool) else bool(self.value(given, False))

    def value(self, key: str, default: Any) -> Any:
        found = self.config.get(key)
        return default if found is None else found

    def size(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = _MOST
    ) -> int:
        found = self.value(key, default)
        if isinstance(found, bool) or not isinstance(found, int):
            missing = "is missing" if found is None else f"is {shown(found)}, which is no size"
            raise self.bad(f"{key} {missing}")
        if not least <= found <= most:
            raise self.bad(f"{key} is {found}, which is no size")
        return found

    def bad(self, what: str) -> InputError:
        return InputError(
            f"{self.origin}: {what}", hint="give the model's own config.json, as it was published"
        )
