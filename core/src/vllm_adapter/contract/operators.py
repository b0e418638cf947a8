"""What each portable operator is, without torch: its facts, dtypes and how it may be composed.

A fact is one property of a case that can decide who runs it. Bind facts are known when a
layer is built; step facts only when a step's batch is. A feature fact has an `off` value, and
a descriptor entry that does not name it declares only that value; a size fact has none, and an
entry that does not name it declares any.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from vllm_adapter.errors import InputError

FactValue = bool | int | float | str

Dtype = Literal["float32", "float16", "bfloat16"]
DTYPES: Final = get_args(Dtype)
SCHEMES: Final = ("int8", "int4", "float8_e4m3fn", "float8_e4m3fnuz")
"""How the weights of a quantised product are stored; `engine.ops.quantization` has the layouts."""
INT4_GROUP: Final = 32
"""Weights of four bits that share a scale and a zero point, along the inputs."""
PHASES: Final = ("decode", "prefill", "mixed")


@dataclass(frozen=True, slots=True)
class CaseProperty:
    """One property of a case. `samples` are the values that conformance tries."""

    summary: str
    samples: tuple[FactValue, ...]
    off: FactValue | None = None
    step: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """One portable operation, as descriptors, decisions and documents see it."""

    name: str
    summary: str
    facts: Mapping[str, CaseProperty]
    dtypes: tuple[str, ...] = DTYPES
    planned: bool = False
    """The last argument is `int plan`: state that is filled once a step."""
    opaque: bool = False
    """Reads lengths on the host: always behind an overload, also in plain torch."""
    composed_of: str | None = None
    """An operator whose implementation serves this one too, with plain torch around it."""

    @property
    def bind_facts(self) -> tuple[str, ...]:
        """Names of the facts known when a layer is built."""
        return tuple(name for name, fact in self.facts.items() if not fact.step)

    @property
    def step_facts(self) -> tuple[str, ...]:
        """Names of the facts known only when a step's batch is."""
        return tuple(name for name, fact in self.facts.items() if fact.step)


_HIDDEN = CaseProperty("width of the normalised or gated dimension", (64, 576, 2048, 65))
_HEAD_SIZE = CaseProperty("elements in one head", (32, 64, 80, 96, 128, 192, 256))
_BLOCK_SIZE = CaseProperty("tokens in one block of the KV cache", (16, 8, 32, 128))
_GQA_RATIO = CaseProperty("query heads that share one KV head", (1, 3, 4, 8))
_WINDOW = CaseProperty("tokens of a sliding window, itself included; 0 is off", (0, 20), 0)
_SOFT_CAP = CaseProperty("logits become cap * tanh(x / cap); 0.0 is off", (0.0, 30.0), 0.0)
_BIAS = CaseProperty("whether a bias is added", (False, True), False)
_TANH = CaseProperty("the approximation by tanh, and not the error function", (False, True), False)
_KV_DTYPE = CaseProperty(
    "dtype of the KV cache; `auto` is the query's", ("auto", "float8_e4m3fn"), "auto"
)

OPERATORS: Final[Mapping[str, Operator]] = {
    op.name: op
    for op in (
        Operator(
            "linear",
            "x @ weight.T + bias",
            {
                "in_features": CaseProperty("width of the input", (64, 576, 33)),
                "out_features": CaseProperty("width of the output", (64, 192, 7)),
                "bias": _BIAS,
            },
        ),
        Operator(
            "quantized_linear",
            "x @ (weight * scale + zero).T + bias, of weights in fewer bits; x is rounded to the "
            "weights' float, row by row, where they are floats",
            {
                "in_features": CaseProperty("width of the input", (64, 576, 33)),
                "out_features": CaseProperty("width of the output", (64, 192, 7)),
                "bias": _BIAS,
                "scheme": CaseProperty("how weights are stored", SCHEMES, SCHEMES[0]),
            },
        ),
        Operator(
            "rms_norm",
            "x / sqrt(mean(x^2) + eps) * weight over the last dimension",
            {"hidden": _HIDDEN},
        ),
        Operator(
            "fused_add_rms_norm",
            "s = x + residual; gives (rms_norm(s), s)",
            {"hidden": _HIDDEN},
            composed_of="rms_norm",
        ),
        Operator(
            "silu_and_mul",
            "silu(first half of the last dimension) * second half",
            {"hidden": _HIDDEN},
        ),
        Operator(
            "layer_norm",
            "(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dimension",
            {"hidden": _HIDDEN, "bias": _BIAS},
        ),
        Operator(
            "gelu",
            "x * Phi(x); with tanh its approximation by tanh",
            {"hidden": _HIDDEN, "tanh": _TANH},
        ),
        Operator(
            "gelu_and_mul",
            "gelu(first half of the last dimension) * second half",
            {"hidden": _HIDDEN, "tanh": _TANH},
        ),
        Operator(
            "embedding",
            "rows of a table, by their numbers",
            {"hidden": _HIDDEN},
        ),
        Operator(
            "rotary_embedding",
            "rotates query and key in place by their positions",
            {
                "head_size": _HEAD_SIZE,
                "interleaved": CaseProperty(
                    "pairs are neighbours (GPT-J) and not halves (NeoX)", (False, True), False
                ),
                "partial": CaseProperty(
                    "only the first part of a head is rotated", (False, True), False
                ),
            },
        ),
        Operator(
            "reshape_and_cache",
            "writes keys and values into the slots of a paged KV cache",
            {"head_size": _HEAD_SIZE, "block_size": _BLOCK_SIZE, "kv_dtype": _KV_DTYPE},
        ),
        Operator(
            "paged_attention",
            "causal attention of packed queries over a paged KV cache",
            {
                "head_size": _HEAD_SIZE,
                "block_size": _BLOCK_SIZE,
                "gqa_ratio": _GQA_RATIO,
                "window": _WINDOW,
                "soft_cap": _SOFT_CAP,
                "kv_dtype": _KV_DTYPE,
                "phase": CaseProperty("what a step's batch holds", PHASES, step=True),
            },
            planned=True,
            opaque=True,
        ),
        Operator(
            "attention",
            "attention of packed sequences over themselves, without a cache: encoders",
            {
                "head_size": _HEAD_SIZE,
                "gqa_ratio": _GQA_RATIO,
                "causal": CaseProperty("a token sees no later ones", (False, True), False),
                "window": _WINDOW,
                "soft_cap": _SOFT_CAP,
            },
            opaque=True,
        ),
    )
}

CORE_OPERATORS: Final = ("linear", "reshape_and_cache", "paged_attention")
"""What no decoder can do without; level L2 asks for a whole layer."""


def operator(name: str) -> Operator:
    """The operator of that name.

    Raises:
        InputError: no such operator; the hint lists the nearest name and all names.
    """
    try:
        return OPERATORS[name]
    except KeyError:
        near = difflib.get_close_matches(name, OPERATORS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"there is no operator {name!r}",
            hint=f"{meant}the operators are: {', '.join(OPERATORS)}",
        ) from None
