"""Bytes and floating-point operations of one call, by arithmetic: the least that must be done.

Bytes: each argument is read once and each result written once, however a kernel goes about it.
Operations: a multiply-add counts as two; exp, erf, tanh, a root and a division as one each.
A row of a causal attention counts the keys that it sees, and the softmax is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

INDEX: Final = 8
"""Bytes of a position, slot or token id."""
ENTRY: Final = 4
"""Bytes of an entry of a block table."""

Dims = Mapping[str, int]
"""Sizes of one call: whole numbers by name; `item` is the bytes of one element."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one call moves, in bytes, and computes, in floating-point operations."""

    bytes: int
    flops: int


def visible(query: int, context: int) -> int:
    """Pairs of a query and a key that it sees: the last `query` of `context` tokens, causal.

    >>> visible(1, 5), visible(3, 3), visible(2, 5)
    (5, 6, 9)
    """
    return query * (context - query) + query * (query + 1) // 2


def work_of(op: str, dims: Dims) -> Work:
    """The work of one call of an operator; KeyError for a size that it needs and has not got."""
    return _WORK[op](dims)


def _linear(d: Dims) -> Work:
    rows, width, out = d["tokens"], d["in_features"], d["out_features"]
    moved = (rows * width + out * width + rows * out) * d["item"]
    return Work(moved, 2 * rows * width * out)


def _quantized_linear(d: Dims) -> Work:
    """Weights of one byte; scales are not counted."""
    rows, width, out = d["tokens"], d["in_features"], d["out_features"]
    return Work((rows * width + rows * out) * d["item"] + out * width, 2 * rows * width * out)


def _by_row(reads: int, writes: int, weights: int, flops: int) -> Callable[[Dims], Work]:
    """Operators over rows of one width: how many rows of it are read and written a token."""

    def count(d: Dims) -> Work:
        element = d["tokens"] * d["hidden"]
        moved = ((reads + writes) * element + weights * d["hidden"]) * d["item"]
        return Work(moved, flops * element)

    return count


def _embedding(d: Dims) -> Work:
    return Work(d["tokens"] * (INDEX + 2 * d["hidden"] * d["item"]), 0)


def _rotary_embedding(d: Dims) -> Work:
    heads = d["kv_heads"] * (d["gqa_ratio"] + 1)
    element = d["tokens"] * heads * d["head_size"]
    table = d["tokens"] * d["head_size"] * d["item"]
    # Two multiplications and a sum for each of the two elements of a pair.
    return Work(d["tokens"] * INDEX + table + 2 * element * d["item"], 3 * element)


def _reshape_and_cache(d: Dims) -> Work:
    element = 2 * d["tokens"] * d["kv_heads"] * d["head_size"]
    return Work(d["tokens"] * INDEX + 2 * element * d["item"], 0)


def _paged_attention(d: Dims) -> Work:
    sequences, query, context = d["sequences"], d["query"], d["context"]
    heads = d["kv_heads"] * d["gqa_ratio"]
    rows = 2 * sequences * query * heads * d["head_size"]
    cached = 2 * sequences * context * d["kv_heads"] * d["head_size"]
    table = sequences * -(-context // d["block_size"]) * ENTRY
    pairs = sequences * visible(query, context) * heads
    return Work((rows + cached) * d["item"] + table, 4 * pairs * d["head_size"])


def _attention(d: Dims) -> Work:
    sequences, length = d["sequences"], d["query"]
    heads = d["kv_heads"] * d["gqa_ratio"]
    element = 2 * sequences * length * (heads + d["kv_heads"]) * d["head_size"]
    seen = visible(length, length) if d["causal"] else length * length
    return Work(element * d["item"], 4 * sequences * seen * heads * d["head_size"])


_WORK: Final[Mapping[str, Callable[[Dims], Work]]] = {
    "linear": _linear,
    "quantized_linear": _quantized_linear,
    # square, add, scale, weight; the sum before it; mean and shift beside it
    "rms_norm": _by_row(1, 1, 1, 4),
    "fused_add_rms_norm": _by_row(2, 2, 1, 5),
    "layer_norm": _by_row(1, 1, 2, 7),
    # negate, exp, add, divide, multiply
    "silu_and_mul": _by_row(2, 1, 0, 5),
    # scale, erf, add, half, multiply; the form by tanh is counted as this one
    "gelu": _by_row(1, 1, 0, 5),
    "gelu_and_mul": _by_row(2, 1, 0, 6),
    "embedding": _embedding,
    "rotary_embedding": _rotary_embedding,
    "reshape_and_cache": _reshape_and_cache,
    "paged_attention": _paged_attention,
    "attention": _attention,
}
