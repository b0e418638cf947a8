"""What spans an operator's space, as data: facts, sizes, layouts, values, history.

Boundaries are what breaks kernels: a power of two and its neighbours, tails of vectors and tiles,
numbers that leave 8, 16 or 32 bits. `members` adds those that a descriptor sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

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
    "gqa_ratio": {
        "one": (1,),
        "powers": (2, 4, 8),
        "other": (3, 5, 6, 7),
        "above 8": (9, 10, 11, 12, 13, 14, 15, 16),
        "above 16": (17, 24, 32),
    },
    "window": {
        "off": (0,),
        "small": (1, 2, 3, 15, 16, 17, 20),
        "wide": (63, 64, 127, 128, 129, 257, 512, 1023, 4096),
    },
    "soft_cap": {"off": (0.0,), "on": (30.0, 1.0, 5.0, 20.0, 50.0), "broken": (0.7, 2.5, 12.3)},
}
"""Values of facts that break kernels, by class."""

_ROWS: Final[Dimension] = {
    "none": ((0,), (3, 0)),
    "one": ((1,), (1, 1)),
    "few": ((5,), (2, 3), (3, 1, 2), (8,)),
    "many": ((17,), (33,), (65,), (5, 13), (2, 2, 17)),
    "above 64": ((66,), (127,), (129,), (3, 43)),
    "above 256": ((257,), (300,), (512,), (2, 129)),
    "above 1024": ((1025,), (16, 65), (2049,)),
    "above 16 bits": ((65537,),),
}
"""Leading shapes."""
_LAYOUT: Final[Dimension] = {
    "plain": ("plain",),
    "rows apart": ("strided", "wider"),
    "every other": ("every other",),
    "transposed": ("transposed", "transposed wider"),
    "offset": ("offset",),
}
"""How a tensor lies in its memory; what lies beside it there is NaN."""
_VECTOR: Final[Dimension] = {
    "plain": ("plain",),
    "every other": ("every other",),
    "offset": ("offset",),
}
"""How a tensor of one dimension lies."""
_ORDER: Final[Dimension] = {
    "mixed": ("mixed",),
    "counting": ("up", "down"),
    "turned": ("turned",),
}
"""In which order ids, positions, slots and blocks come: as prompts have them, or as no prompt has.
`turned` counts up at its ends alone."""
_EPS: Final[Dimension] = {
    "usual": (1e-6, 1e-5),
    "small": (1e-8, 1e-12),
    "large": (1e-3, 1e-2, 0.1),
}
_HISTORY: Final[Dimension] = {
    "once": ("once",),
    "again": ("again",),
    "in place": ("in place",),
    "other shape": ("in turn",),
    "other facts": ("other facts",),
}
_KV_HEADS: Final[Dimension] = {"one": (1,), "two": (2,), "odd": (3, 5, 7), "more": (4, 6, 8)}
_SCALE: Final[Dimension] = {"usual": (-0.5,), "other": (-1.0, -0.25), "one": (0.0,)}
"""The power of the head's size that scores are multiplied with."""
_PARTS: Final[Dimension] = {
    "plain": ("plain",),
    "fused": ("fused", "fused apart"),
    "rows apart": ("strided", "wider"),
    "transposed": ("transposed", "transposed wider"),
    "offset": ("offset",),
}
"""How heads lie: `fused` is a part of one tensor of queries, keys and values, which lie one behind
the other or apart."""
_VALUES: Final[Dimension] = {**_PARTS, "one tensor": ("the keys",)}
"""How values lie: they may be the keys themselves."""
_CACHE: Final[Dimension] = {
    "apart": ("apart",),
    "views": ("interleaved", "one behind the other"),
    "heads first": ("heads first",),
    "unlike": ("values heads first", "keys heads first"),
    "offset": ("offset",),
    "one tensor": ("one",),
}
"""How the caches of keys and values lie, where they are read: they may be one."""
_SCORES: Final[Dimension] = {
    "normal": ("normal",),
    "spread": ("spread",),
    "one key": ("one key",),
    "rising": ("rising", "falling"),
    "far below": ("far below",),
    "far above": ("far above",),
    "far apart": ("far apart",),
    "even": ("no query", "equal keys"),
    "small": ("tiny",),
    "positive": ("positive",),
    "great": ("great values",),
}
_ROW_OP: Final[Mapping[str, Dimension]] = {
    "rows": _ROWS,
    "layout": _LAYOUT,
    "weights": _VECTOR,
    "history": _HISTORY,
}
_GATES: Final[Dimension] = {
    "normal": ("normal",),
    "even steps": ("even steps",),
    "saturated": ("saturated",),
    "beyond exp": ("beyond exp",),
    "small": ("tiny", "zeros"),
    "denormal": ("denormal",),
    "great": ("great",),
    "nan": ("nan",),
}
_SILU_GATES: Final[Dimension] = {**_GATES, "inf": ("inf",)}
"""Of gelu infinity is left out: torch itself multiplies it with zero in some dtypes."""
_NORM: Final[Dimension] = {
    "normal": ("normal",),
    "tiny": ("tiny",),
    "zeros": ("zeros", "zero rows"),
    "large": ("large",),
    "great": ("great",),
    "one element": ("one element",),
    "constant": ("constant",),
    "shifted": ("shifted", "far from zero"),
    "nan": ("nan",),
}
_COPIED: Final[Dimension] = {
    "normal": ("normal",),
    "denormal": ("denormal",),
    "great": ("great",),
    "inf": ("inf",),
    "nan": ("nan",),
}
_ACTIVATION: Final[Mapping[str, Dimension]] = {
    "rows": _ROWS,
    "layout": _LAYOUT,
    "values": _SILU_GATES,
    "history": _HISTORY,
}
_NORMALISED: Final[Mapping[str, Dimension]] = {**_ROW_OP, "values": _NORM, "eps": _EPS}
_TOKENS: Final[Dimension] = {
    "none": (0,),
    "one": (1,),
    "few": (2, 5, 9),
    "many": (17, 33, 65),
    "above 64": (66, 127, 129),
    "above 256": (257, 300),
    "above 1024": (1025,),
}
_BATCH: Final[Dimension] = {
    "one": (1,),
    "few": (2, 3, 5),
    "many": (17, 33),
    "above 64": (65, 70),
    "above 256": (257,),
    "none": (0,),
}

SAMPLED: Final[Mapping[str, Mapping[str, Dimension]]] = {
    "linear": {
        **_ROW_OP,
        "weights": _LAYOUT,
        "shift": _VECTOR,
        "values": {
            "normal": ("normal",),
            "one element": ("one element",),
            "zeros": ("zeros", "zero rows"),
            "cancelling": ("cancelling",),
            "opposite": ("opposite",),
            "positive": ("positive",),
            "tiny": ("tiny",),
            "great": ("great",),
            "nan": ("nan",),
        },
    },
    "quantized_linear": {
        "rows": _ROWS,
        "layout": _LAYOUT,
        "shift": _VECTOR,
        "values": {
            "normal": ("normal",),
            "one element": ("one element",),
            "zeros": ("zeros",),
            "tiny": ("tiny",),
            "great": ("great",),
            "nan": ("nan",),
        },
        "history": _HISTORY,
    },
    "rms_norm": _NORMALISED,
    "fused_add_rms_norm": {
        **_NORMALISED,
        "residual": {**_LAYOUT, "one tensor": ("x itself",)},
    },
    "layer_norm": {
        **_NORMALISED,
        "shift": {**_VECTOR, "one tensor": ("the weight",)},
    },
    "silu_and_mul": _ACTIVATION,
    "gelu": {**_ACTIVATION, "values": _GATES},
    "gelu_and_mul": {**_ACTIVATION, "values": _GATES},
    "embedding": {
        "rows": _ROWS,
        "vocabulary": {
            "one": (1, 2),
            "few": (50, 255, 256, 257),
            "above 2048": (2051, 3000),
            "above 15 bits": (32769, 40001),
            "above 16 bits": (65537, 70001),
        },
        "ids": _VECTOR,
        "order": {**_ORDER, "equal": ("equal",)},
        "weights": _LAYOUT,
        "values": _COPIED,
        "history": _HISTORY,
    },
    "rotary_embedding": {
        "tokens": _TOKENS,
        "kv_heads": _KV_HEADS,
        "ratio": {"one": (1,), "more": (2, 3, 5, 7), "above 8": (9, 12, 16)},
        "positions": {
            "few": (1, 64),
            "above 8 bits": (257, 300),
            "above 1024": (1025, 2048, 2051, 4097),
            "above 15 bits": (32769,),
            "above 16 bits": (65537, 70001),
        },
        "width": {"half": (0.5,), "less": (0.25, 0.3), "more": (0.75, 0.9)},
        "table": {"own": ("own",), "float32": ("float32",)},
        "layout": _PARTS,
        "keys": _PARTS,
        "weights": _LAYOUT,
        "ids": _VECTOR,
        "order": {**_ORDER, "equal": ("equal",)},
        "values": {"normal": ("normal",), "large": ("large",), "tiny": ("tiny",)},
        "history": _HISTORY,
    },
    "reshape_and_cache": {
        "tokens": _TOKENS,
        "kv_heads": _KV_HEADS,
        "pool": {"few": (4, 7), "above 8 bits": (300,), "above 16 bits": (33000, 66000)},
        "padding": {"none": ("none",), "some": (-1,), "far": (-2, -(2**33)), "all": ("all",)},
        "layout": _PARTS,
        "added": _VALUES,
        "ids": _VECTOR,
        "order": _ORDER,
        "cache": {kind: members for kind, members in _CACHE.items() if kind != "one tensor"},
        "values": _COPIED,
        "history": _HISTORY,
    },
    "paged_attention": {
        "phase": {"decode": ("decode",), "prefill": ("prefill",), "mixed": ("mixed",)},
        "batch": _BATCH,
        "context": {
            "least": ("one", "block", "block and one"),
            "short": ("short", "two blocks", "two blocks and one"),
            "tiles": (63, 64, 65, 127, 128, 129),
            "above 255": (255, 256, 257, 300),
            "above 512": (512, 513, 600, 1025),
            "above 2048": (2049, 4097),
            "above 8192": (8193, 9001),
        },
        "queries": {
            "few": (2, 5, 16),
            "many": (17, 32, 33, 64, 65),
            "above 128": (128, 129, 200),
            "above 256": (257, 300),
        },
        "kv_heads": _KV_HEADS,
        "scale": _SCALE,
        "values": _SCORES,
        "layout": _PARTS,
        "cache": _CACHE,
        "ids": _VECTOR,
        "table": {"exact": ("exact",), "wider": ("wider",), "view": ("view", "offset")},
        "filler": {"far": (2**30,), "negative": (-1,), "free": ("free",)},
        "pool": {"few": (2,), "above 8 bits": (300,), "above 16 bits": (33000, 66000)},
        "shared": {"no": (False,), "yes": (True,)},
        "order": {"mixed": ("mixed",), "counting": ("up", "down")},
        "history": _HISTORY,
    },
    "attention": {
        "batch": _BATCH,
        "queries": {
            "one": (1,),
            "few": (2, 9, 16, 17),
            "many": (32, 33, 64, 65),
            "above 128": (127, 128, 129),
            "above 256": (256, 257, 300),
            "above 512": (513, 600),
        },
        "kv_heads": _KV_HEADS,
        "scale": _SCALE,
        "values": _SCORES,
        "layout": _PARTS,
        "keys": _PARTS,
        "added": _VALUES,
        "ids": _VECTOR,
        "history": _HISTORY,
    },
}
"""What a case's facts leave open, by operator."""

TRIPLES: Final[Mapping[str, Sequence[Mapping[str, Sequence[str]]]]] = {
    "paged_attention": (
        {
            "window": ("small", "wide"),
            "soft_cap": ("on", "broken"),
            "head_size": ("small", "usual", "between", "wide"),
        },
        {
            "gqa_ratio": ("powers", "other", "above 8"),
            "head_size": ("small", "usual", "between", "wide"),
            "block_size": ("powers", "wide", "other"),
        },
        {
            "window": ("small", "wide"),
            "gqa_ratio": ("powers", "other", "above 8"),
            "context": ("above 255", "above 512", "above 2048"),
        },
        {
            "filler": ("far", "negative", "free"),
            "table": ("wider", "view"),
            "shared": ("no", "yes"),
        },
        {
            "phase": ("decode", "prefill", "mixed"),
            "window": ("off", "small", "wide"),
            "soft_cap": ("off", "on"),
        },
        {
            "phase": ("decode", "prefill", "mixed"),
            "gqa_ratio": ("powers", "other", "above 8"),
            "batch": ("one", "few", "many"),
        },
        {
            "phase": ("decode",),
            "context": ("short", "above 255", "above 512", "above 2048", "above 8192"),
            "window": ("off", "wide"),
        },
    ),
    "attention": (
        {
            "window": ("small", "wide"),
            "soft_cap": ("on", "broken"),
            "head_size": ("small", "usual", "between", "wide"),
        },
        {
            "causal": ("False", "True"),
            "window": ("off", "small", "wide"),
            "soft_cap": ("off", "on"),
        },
        {
            "causal": ("False", "True"),
            "window": ("off", "small", "wide"),
            "gqa_ratio": ("powers", "other", "above 8"),
        },
        # A few keys of very many show in float32 alone, and to those who see what comes later.
        {
            "queries": ("above 256", "above 512"),
            "causal": ("False", "True"),
            "dtype": ("float32",),
        },
        {
            "queries": ("above 256", "above 512"),
            "window": ("off", "small", "wide"),
            "dtype": ("float32",),
        },
        {
            "values": ("far apart", "far below", "far above"),
            "causal": ("False", "True"),
            "dtype": ("float32",),
        },
        {
            "values": ("far apart", "far below", "far above"),
            "window": ("off", "small", "wide"),
            "causal": ("False", "True"),
        },
    ),
    "reshape_and_cache": (
        {
            "padding": ("some", "far"),
            "pool": ("few", "above 8 bits"),
            "block_size": ("powers", "wide", "other"),
        },
    ),
    "rotary_embedding": (
        {
            "interleaved": ("False", "True"),
            "partial": ("True",),
            "width": ("half", "less", "more"),
        },
        {
            "interleaved": ("False", "True"),
            "partial": ("False", "True"),
            "head_size": ("small", "usual", "between", "wide"),
        },
    ),
    "quantized_linear": (
        {
            "scheme": ("int8", "int4", "float8_e4m3fn", "float8_e4m3fnuz"),
            "in_features": ("below 64", "beside a power", "about 4096"),
            "rows": ("one", "few", "many", "above 64"),
        },
    ),
    "linear": (
        {
            "bias": ("False", "True"),
            "in_features": ("below 64", "beside a power", "about 4096"),
            "rows": ("one", "few", "many", "above 64"),
        },
    ),
}
"""Classes of three dimensions that meet as well: features that a kernel serves by a branch."""

BEYOND_REACH: Final[Mapping[str, str]] = {
    "embedding": "offset=2147483648",
    "linear": "offset=2147483648",
    "reshape_and_cache": "offset=2147483648",
    "paged_attention": "offset=2147483648",
}
"""What no draw ever has, by operator: tensors of 2^31 elements would fill the host."""
