"""What is known of each family of models: which keys of a config decide which tensors there are.

A family is data; `shapes.py` builds tensors from it. Defaults are those of the config classes of
transformers 5.24, which write only what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Flag = bool | str
"""A constant, or the key of the config that says it."""


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type`. `norms` are the norms of a layer, `head_norm` those of query and key.

    `experts`: the keys of (number, width of one, experts a token); `shared`: of the width of the
    shared expert. `window_every`: n means that all layers but each n-th have the window; 0 all.
    """

    name: str
    norms: int = 2
    tied: bool = False
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    head_norm: bool = False
    latent: bool = False
    encoder: bool = False
    experts: tuple[str, str, str] | None = None
    shared: str | None = None
    shared_gate: bool = False
    window: Literal["", "always", "asked"] = ""
    window_every: int = 1
    soft_cap: bool = False
    act: str = "silu"
    defaults: Mapping[str, Any] = field(default_factory=dict)


_GEMMA: Final = {"head_dim": 256}

FAMILIES: Final[Mapping[str, Family]] = {
    one.name: one
    for one in (
        Family(
            "llama",
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias="mlp_bias",
        ),
        Family("mistral", window="always", defaults={"num_key_value_heads": 8}),
        Family("qwen2", qkv_bias=True, window="asked"),
        Family(
            "qwen3",
            head_norm=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            window="asked",
            defaults={"head_dim": 128},
        ),
        Family(
            "qwen2_moe",
            qkv_bias=True,
            experts=("num_experts", "moe_intermediate_size", "num_experts_per_tok"),
            shared="shared_expert_intermediate_size",
            shared_gate=True,
            window="asked",
            defaults={"num_experts_per_tok": 4},
        ),
        Family(
            "qwen3_moe",
            head_norm=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            experts=("num_experts", "moe_intermediate_size", "num_experts_per_tok"),
            window="asked",
            defaults={"num_experts": 128, "num_experts_per_tok": 8},
        ),
        Family(
            "mixtral",
            experts=("num_local_experts", "intermediate_size", "num_experts_per_tok"),
            window="always",
            defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
        ),
        Family(
            "deepseek_v2",
            latent=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            experts=("n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"),
            shared="n_shared_experts",
        ),
        Family(
            "deepseek_v3",
            latent=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            experts=("n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"),
            shared="n_shared_experts",
            defaults={"num_experts_per_tok": 8},
        ),
        Family(
            "gemma",
            tied=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            act="gelu",
            defaults=_GEMMA,
        ),
        Family(
            "gemma2",
            norms=4,
            tied=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            window="always",
            window_every=2,
            soft_cap=True,
            act="gelu",
            defaults={**_GEMMA, "sliding_window": 4096, "attn_logit_softcapping": 50.0},
        ),
        Family(
            "gemma3_text",
            norms=4,
            tied=True,
            head_norm=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            window="always",
            window_every=6,
            act="gelu",
            defaults={**_GEMMA, "sliding_window": 4096, "vocab_size": 262208},
        ),
        Family("bert", encoder=True, tied=True, act="gelu"),
    )
}

ALIASES: Final[Mapping[str, str]] = {"kimi_k2": "deepseek_v3"}
"""Types of models whose tensors are those of another family."""

GGUF: Final[Mapping[str, str]] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "bert": "bert",
}
"""`general.architecture` of a GGUF file: the family whose layers it has."""
