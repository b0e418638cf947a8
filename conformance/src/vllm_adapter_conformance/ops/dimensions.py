"""What spans an operator's space, without torch: facts, sizes, layouts, values, history.

Boundaries come from two places: what breaks kernels (a power of two and its neighbours, tails of
vectors and tiles, numbers that leave 8, 16 or 32 bits) and the limits that a descriptor sets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import OperatorEntry, Rule, holds
from vllm_adapter.contract.operators import CaseProperty, FactValue, Operator
from vllm_adapter_conformance.ops.covering import Dimension

_WIDTHS: Final[Dimension] = {
    "least": (1, 2, 3),
    "below 64": (7, 8, 15, 16, 17, 31, 32, 33, 63),
    "powers": (64, 128, 256, 512, 1024, 2048),
    "beside a power": (65, 127, 129, 255, 257, 511, 513, 1023, 1025, 2047, 2049),
    "between": (96, 320, 576, 768, 1000, 1536, 3072),
    "about 4096": (4095, 4096, 4097, 5120, 8191, 8193, 11008, 16384),
    "above 32768": (32767, 32768, 32769, 65535, 65537),
}
_HEADS: Final[Dimension] = {
    "least": (1, 2, 4, 8),
    "small": (16, 24, 32, 40, 48),
    "usual": (64, 128),
    "between": (72, 80, 96, 112, 160),
    "wide": (192, 224, 256),
    "beyond 256": (288, 320, 512),
    "odd": (33, 65, 127, 129),
}
_BLOCKS: Final[Dimension] = {
    "one": (1,),
    "powers": (8, 16, 32, 64, 128),
    "wide": (160, 256),
    "other": (3, 17, 24, 48, 72),
}
STANDARD: Final[Mapping[str, Dimension]] = {
    "hidden": _WIDTHS,
    "in_features": _WIDTHS,
    "out_features": _WIDTHS,
    "head_size": _HEADS,
    "block_size": _BLOCKS,
    "gqa_ratio": {"one": (1,), "powers": (2, 4, 8, 16), "other": (3, 5, 6, 7, 12)},
    "window": {
        "off": (0,),
        "small": (1, 2, 15, 16, 17, 20),
        "wide": (64, 127, 128, 129, 257, 512, 1023, 4096),
    },
    "soft_cap": {"off": (0.0,), "on": (30.0, 1.0, 5.0, 20.0, 50.0)},
}
"""Values of facts that break kernels, by class."""

_ROWS: Final[Dimension] = {
    "none": ((0,), (3, 0)),
    "one": ((1,), (1, 1)),
    "few": ((5,), (2, 3), (3, 1, 2), (8,)),
    "many": ((17,), (33,), (65,), (5, 13)),
    "more": ((257,), (300,), (1025,), (16, 65)),
    "above 16 bits": ((65537,),),
}
"""Leading shapes."""
_LAYOUT: Final[Dimension] = {
    "plain": ("plain",),
    "strided": ("strided", "wider", "every other", "transposed"),
    "offset": ("offset",),
}
"""How a tensor lies in its memory; what lies beside it there is NaN."""
_EPS: Final[Dimension] = {"usual": (1e-6, 1e-5), "small": (1e-8, 1e-12), "large": (1e-3, 0.1)}
_HISTORY: Final[Dimension] = {
    "once": ("once",),
    "other contents": ("again", "in place"),
    "other shape": ("in turn",),
}
_KV_HEADS: Final[Dimension] = {"one": (1,), "two": (2,), "more": (3, 4, 5, 8)}
_SCALE: Final[Dimension] = {"usual": (-0.5,), "other": (-1.0, -0.25)}
"""The power of the head's size that scores are multiplied with."""
_SCORES: Final[Dimension] = {
    "normal": ("normal",),
    "large": ("spread", "one key"),
    "far": ("far below", "far above"),
    "even": ("no query", "equal keys"),
    "small": ("tiny",),
}
_ROW_OP: Final[Mapping[str, Dimension]] = {
    "rows": _ROWS,
    "layout": _LAYOUT,
    "weights": _LAYOUT,
    "history": _HISTORY,
}
_GATES: Final[Dimension] = {
    "normal": ("normal",),
    "saturated": ("saturated", "beyond exp"),
    "small": ("tiny", "denormal", "zeros"),
    "no number": ("inf", "nan"),
}
_GELU_GATES: Final[Dimension] = {**_GATES, "no number": ("nan",)}
"""Infinity is left out: torch itself multiplies it with zero in some dtypes."""
_NORM: Final[Dimension] = {
    "normal": ("normal",),
    "small": ("tiny", "zeros"),
    "large": ("large", "one element"),
    "even": ("constant", "shifted"),
}
_ACTIVATION: Final[Mapping[str, Dimension]] = {
    "rows": _ROWS,
    "layout": _LAYOUT,
    "values": _GATES,
    "history": _HISTORY,
}
_NORMALISED: Final[Mapping[str, Dimension]] = {**_ROW_OP, "values": _NORM, "eps": _EPS}
_TOKENS: Final[Dimension] = {
    "none": (0,),
    "one": (1,),
    "few": (2, 5, 9),
    "many": (17, 33, 65),
    "more": (257, 300),
}

SAMPLED: Final[Mapping[str, Mapping[str, Dimension]]] = {
    "linear": {
        **_ROW_OP,
        "values": {"normal": ("normal",), "other": ("one element", "cancelling", "tiny")},
    },
    "rms_norm": _NORMALISED,
    "fused_add_rms_norm": _NORMALISED,
    "layer_norm": _NORMALISED,
    "silu_and_mul": _ACTIVATION,
    "gelu": {**_ACTIVATION, "values": _GELU_GATES},
    "gelu_and_mul": {**_ACTIVATION, "values": _GELU_GATES},
    "embedding": {
        "rows": _ROWS,
        "vocabulary": {
            "one": (1, 2),
            "few": (50, 255, 256, 257),
            "many": (32769, 32000),
            "above 16 bits": (65537, 70001),
        },
        "weights": _LAYOUT,
        "values": {"normal": ("normal",), "other": ("denormal", "inf")},
        "history": _HISTORY,
    },
    "rotary_embedding": {
        "tokens": _TOKENS,
        "kv_heads": _KV_HEADS,
        "ratio": {"one": (1,), "more": (2, 3, 5, 7)},
        "positions": {
            "few": (1, 64),
            "above 1024": (1025, 2048, 4097),
            "above 15 bits": (32769,),
            "above 16 bits": (65537, 70001),
        },
        "width": {"half": (0.5,), "other": (0.25, 0.75)},
        "table": {"own": ("own",), "float32": ("float32",)},
        "layout": {"plain": ("plain",), "fused": ("fused",), "offset": ("offset",)},
        "weights": _LAYOUT,
        "values": {"normal": ("normal",), "large": ("large",)},
        "history": _HISTORY,
    },
    "reshape_and_cache": {
        "tokens": _TOKENS,
        "kv_heads": _KV_HEADS,
        "pool": {"few": (4, 7), "above 8 bits": (300,), "above 16 bits": (33000, 66000)},
        "padding": {"none": ("none",), "some": (-1, -2, -(2**33)), "all": ("all",)},
        "layout": {"plain": ("plain",), "fused": ("fused",), "offset": ("offset",)},
        "cache": {"apart": ("apart",), "views": ("interleaved", "one behind the other")},
        "values": {"normal": ("normal",), "other": ("denormal", "inf")},
        "history": _HISTORY,
    },
    "paged_attention": {
        "phase": {"decode": ("decode",), "prefill": ("prefill",), "mixed": ("mixed",)},
        "batch": {"one": (1,), "few": (2, 5), "many": (17, 65, 257), "none": (0,)},
        "context": {
            "least": ("one", "block", "block and one"),
            "short": ("short",),
            "above 512": (513, 600, 1025),
            "above 2048": (2049, 4097),
            "above 8192": (8193,),
        },
        "queries": {"few": (2, 5, 16), "many": (33, 65, 129), "above 256": (257, 300)},
        "kv_heads": _KV_HEADS,
        "scale": _SCALE,
        "values": _SCORES,
        "layout": {"plain": ("plain",), "fused": ("fused",), "offset": ("offset",)},
        "cache": {"apart": ("apart",), "views": ("interleaved", "one behind the other")},
        "table": {"exact": ("exact",), "wider": ("wider",), "view": ("view",)},
        "filler": {"far": (2**30,), "negative": (-1,), "free": ("free",)},
        "pool": {"few": (2,), "above 8 bits": (300,), "above 16 bits": (33000, 66000)},
        "shared": {"no": (False,), "yes": (True,)},
        "history": _HISTORY,
    },
    "attention": {
        "batch": {"one": (1,), "few": (2, 5), "many": (17, 65, 257), "none": (0,)},
        "queries": {
            "one": (1,),
            "few": (2, 9, 16, 17),
            "many": (33, 65, 129),
            "above 256": (257, 300),
            "above 512": (513, 600),
        },
        "kv_heads": _KV_HEADS,
        "scale": _SCALE,
        "values": _SCORES,
        "layout": {"plain": ("plain",), "fused": ("fused",), "offset": ("offset",)},
        "history": _HISTORY,
    },
}
"""What a case's facts leave open, by operator."""

BEYOND_REACH: Final[Mapping[str, str]] = {
    "embedding": "offset=2147483648",
    "linear": "offset=2147483648",
    "reshape_and_cache": "offset=2147483648",
    "paged_attention": "offset=2147483648",
}
"""What no draw ever has, by operator: tensors of 2^31 elements would fill the host."""


def plain(op: str) -> dict[str, Any]:
    """A small choice: what comes between two calls of another shape."""
    small = {"rows": (3,), "tokens": 3, "queries": 2, "context": "short", "batch": 2}
    return {
        name: small.get(name, next(iter(classes.values()))[0])
        for name, classes in SAMPLED[op].items()
    }


def fact_dimension(
    entries: Iterable[OperatorEntry], operator: Operator, name: str
) -> dict[str, Sequence[Any]]:
    """The classes of a fact's values that some entry admits, and those that its limits name."""
    fact = operator.facts[name]
    rules = [_rule(entry, fact, name) for entry in entries if entry.declares]
    standard = STANDARD.get(name) or {str(value): (value,) for value in fact.samples}
    named = list(
        dict.fromkeys(itertools.chain.from_iterable(_named(fact, rule) for rule in rules))
    )
    known = set(itertools.chain.from_iterable(standard.values()))
    found = {
        kind: tuple(v for v in members if any(holds(rule, v) for rule in rules))
        for kind, members in [*standard.items(), ("its limits", named)]
    }
    found["its limits"] = tuple(v for v in found["its limits"] if v not in known)
    return {kind: members for kind, members in found.items() if members}


def admitting(capability: Capability, operator: Operator) -> list[OperatorEntry]:
    """The entries that may serve an operator: its own, and those of what it is composed of."""
    parts = [operator.name, *filter(None, [operator.composed_of])]
    return [entry for part in parts for entry in capability.operators.get(part, ())]


def _rule(entry: OperatorEntry, fact: CaseProperty, name: str) -> Rule:
    """What an entry admits of a fact: as `decide` has it."""
    return entry.limits.get(name, {} if fact.off is None else (fact.off,))


def _named(fact: CaseProperty, rule: Rule) -> list[FactValue]:
    """The values at the ends of a rule, and odd multiples between."""
    if isinstance(rule, tuple):
        return list(rule)
    if not rule or isinstance(fact.samples[0], (bool, str)):
        return []
    kind = type(fact.samples[0])
    step = rule.get("multiple_of", 1)
    least = math.ceil(max(rule.get("min", 0), step) / step) * step
    tried = [least, least + step, 3 * step, 5 * step, 7 * step, 13 * step]
    if "max" in rule:
        most = math.floor(rule["max"] / step) * step
        tried += [most, most - step]
    return [kind(value) for value in tried if value > 0 and holds(rule, kind(value))]
