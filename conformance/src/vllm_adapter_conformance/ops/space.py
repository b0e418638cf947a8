"""The cases that are drawn from an operator's whole space, without torch.

Each draw settles every fact and everything that the facts leave open: pairs of all of them meet
(`covering`), boundaries are visited, and the rest is random. The seed and the budget fix them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from random import Random
from typing import Any, Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Accept, decide
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.rule import Case
from vllm_adapter_conformance.base.target import BUDGET_S
from vllm_adapter_conformance.ops.cases import Facts, refusal
from vllm_adapter_conformance.ops.covering import Covering, Dimension, Row
from vllm_adapter_conformance.ops.dimensions import BEYOND_REACH, TRIPLES
from vllm_adapter_conformance.ops.effects import DECIDING, effects
from vllm_adapter_conformance.ops.lengths import packed_lengths, paged_lengths
from vllm_adapter_conformance.ops.members import admitting, fact_dimension, plain, sampled

BETWEEN: Final = 3
"""Calls between two equal ones."""
GROUP: Final = 8
"""Draws of one dtype that are one case."""
SHARES: Final[Mapping[str, float]] = {
    "linear": 2.3,
    "quantized_linear": 1.9,
    "paged_attention": 7.0,
    "attention": 2.5,
    "reshape_and_cache": 2.0,
    "rotary_embedding": 1.5,
    "embedding": 1.4,
    "layer_norm": 1.1,
    "fused_add_rms_norm": 1.1,
    "rms_norm": 1.0,
    "silu_and_mul": 0.9,
    "gelu": 0.9,
    "gelu_and_mul": 0.9,
}
"""Of the budget: by how many dimensions there are, and by what serving stands on."""
CALLS: Final = {"once": 1, "again": 3, "in place": 4, "in turn": 4, "other facts": 4}
_CALL_S: Final = 2.0e-3
_SEQUENCE_S: Final[Mapping[str, float]] = {"paged_attention": 2e-4, "attention": 1e-4}
"""A plain kernel goes from sequence to sequence."""
_PRODUCT_S: Final = 1.5e-9
_ELEMENT_S: Final[Mapping[str, float]] = {
    "linear": 1.6e-8,
    "quantized_linear": 3e-8,
    "reshape_and_cache": 1.8e-8,
    "embedding": 7e-9,
    "rotary_embedding": 1e-8,
    "paged_attention": 1e-8,
}
"""Where it is not `_ROW_S`: seconds for an element of a call, drawing and reference included."""
_ROW_S: Final = 7e-9
_MOST_ELEMENTS: Final[Mapping[str, float]] = {
    "linear": 2.5e6,
    "quantized_linear": 1.5e6,
    "reshape_and_cache": 4.6e6,
    "embedding": 4.6e6,
    "rotary_embedding": 3e6,
    "paged_attention": 5e6,
}
_MOST_ROWS: Final = 5e6
_MOST_S: Final = 0.25
_MOST_PRODUCTS: Final = 6e7
"""What one call may be large at the usual budget; a larger one admits larger calls."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of an operator's space: its facts, and the choice of what they leave open."""

    facts: Facts
    choice: Mapping[str, Any]
    between: tuple[Point, ...] = ()
    """What is called before it is called once more, if its history asks for that."""

    def to_json(self) -> dict[str, Any]:
        """As a case's parameters have it."""
        return {
            "facts": dict(self.facts),
            "choice": dict(self.choice),
            "between": [other.to_json() for other in self.between],
        }


@dataclass(frozen=True, slots=True)
class Drawn:
    """The draws of one operator, and what they did not reach."""

    op: str
    draws: tuple[Point, ...]
    pairs: tuple[int, int]
    triples: tuple[int, int]
    not_visited: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As the certificate has it."""
        met, asked = self.pairs
        return {
            "draws": len(self.draws),
            "pairs_met": met,
            "pairs": asked,
            "not_visited": list(self.not_visited),
        }


def drawn(capability: Capability, op: str, seed: int, budget: float) -> Drawn | None:
    """The draws of an operator within its share of the budget; None where it is not declared.

    A boundary is a value that the descriptor admits, in some dtype; it may still be refused with
    every other fact, or be too large for the budget.
    """
    key = (id(capability), op, seed, budget)
    if key not in _drawn:
        if len(_drawn) > 4 * len(OPERATORS):
            _drawn.clear()
        _drawn[key] = capability, _draw(capability, op, seed, budget)
    return _drawn[key][1]


_drawn: Final[dict[tuple[int, str, int, float], tuple[Capability, Drawn | None]]] = {}
"""What was drawn before; the descriptor is kept with it, so that no other has its id."""


def _draw(capability: Capability, op: str, seed: int, budget: float) -> Drawn | None:
    operator = OPERATORS[op]
    entries = [e for e in admitting(capability, operator) if e.declares]
    dtypes = [d for d in DTYPES if any(d in e.dtypes for e in entries)]
    if not dtypes:
        return None
    random = Random(f"{seed}/{op}")
    facts: dict[str, Dimension] = {
        n: fact_dimension(entries, operator, n, random) for n in operator.bind_facts
    }
    if not all(facts.values()):
        return None
    open_to_choice = sampled(op, random)
    dimensions: dict[str, Dimension] = {"dtype": {d: (d,) for d in dtypes}}
    dimensions |= facts | open_to_choice
    known: dict[tuple[Any, ...], bool] = {}
    size = max(1.0, budget / BUDGET_S) ** 0.5

    def accepts(row: Row) -> bool:
        elements, products = cost(op, row)
        if (
            elements > _MOST_ELEMENTS.get(op, _MOST_ROWS) * size
            or products > _MOST_PRODUCTS * size
            or seconds(op, row) > _MOST_S * size
        ):
            return False
        return _possible(op, row) and _declared(capability, op, row, known)

    covering = Covering(
        dimensions,
        accepts,
        random,
        TRIPLES.get(op, ()),
        cost=lambda row: seconds(op, row),
        effects=lambda row: effects(op, row),
        deciding=DECIDING,
    )
    remaining = budget * SHARES[op] / sum(SHARES.values())
    draws = []
    for row in covering.rows():
        found = Point(
            {name: row[name] for name in ("dtype", *operator.bind_facts)},
            {name: row[name] for name in open_to_choice},
        )
        found = replace(found, between=_between(op, found, dimensions, accepts, random))
        remaining -= seconds(op, row)
        draws.append(found)
        if remaining < 0:
            break
    unseen = [f"{name}={member}" for name, member in covering.unseen]
    unseen += [" with ".join(f"{n}={k}" for n, k in sorted(one)) for one in covering.unmet]
    unseen += [BEYOND_REACH[op]] if op in BEYOND_REACH else []
    return Drawn(op, tuple(draws), covering.pairs, covering.met_triples, tuple(unseen))


def drawn_cases(capability: Capability, op: str, seed: int, budget: float) -> Iterator[Case]:
    """The draws as cases of a rule: a few of one dtype are one."""
    found = drawn(capability, op, seed, budget)
    if found is None:
        return
    entries = [e for e in admitting(capability, OPERATORS[op]) if e.declares]
    for dtype in DTYPES:
        pointer = next((e.pointer for e in entries if dtype in e.dtypes), None)
        mine = [point.to_json() for point in found.draws if point.facts["dtype"] == dtype]
        for number, start in enumerate(range(0, len(mine), GROUP)):
            params = {"op": op, "draws": mine[start : start + GROUP]}
            yield Case(f"{dtype}-drawn-{number}", params, pointer)


def sampling(capability: Capability, seed: int, budget: float) -> dict[str, Any]:
    """What was drawn, for the certificate."""
    found = (drawn(capability, op, seed, budget) for op in OPERATORS)
    return {"budget_s": budget, "operators": {one.op: one.to_json() for one in found if one}}


def seconds(op: str, row: Mapping[str, Any]) -> float:
    """About how long one draw takes where core's own kernels run it."""
    elements, products = cost(op, row)
    calls = CALLS[row["history"]]
    calls_s = _CALL_S + float(row.get("batch", 0)) * _SEQUENCE_S.get(op, 0.0)
    each = elements * _ELEMENT_S.get(op, _ROW_S) + products * _PRODUCT_S
    return _CALL_S + calls * (calls_s + each)


def cost(op: str, row: Mapping[str, Any]) -> tuple[float, float]:
    """Elements that one call touches, and products that it adds up."""
    if op == "paged_attention":
        return _paged_cost(row)
    if op == "attention":
        lengths = packed_lengths(row, "cost")
        heads = row["kv_heads"] * (row["gqa_ratio"] + 2)
        squares = sum(length**2 for length in lengths)
        return sum(lengths) * heads * row["head_size"], squares * heads * row["head_size"]
    if op == "reshape_and_cache":
        head = row["kv_heads"] * row["head_size"]
        return 2 * row["pool"] * row["block_size"] * head + 3 * row["tokens"] * head, 0
    if op == "rotary_embedding":
        table = (row["positions"] + 1) * row["head_size"]
        heads = row["kv_heads"] * (row["ratio"] + 1)
        return table + 3 * row["tokens"] * heads * row["head_size"], 0
    rows = math.prod(row["rows"])
    if op == "embedding":
        return (row["vocabulary"] + rows) * row["hidden"], 0
    if op in ("linear", "quantized_linear"):
        weight = row["in_features"] * row["out_features"]
        return weight + rows * (row["in_features"] + row["out_features"]), 2 * rows * weight
    # Functions of each element cost more than a sum or a copy.
    return 6 * rows * row["hidden"], 0


def _paged_cost(row: Mapping[str, Any]) -> tuple[float, float]:
    queries, contexts = paged_lengths(row, row["block_size"], "cost")
    heads, size, block = row["kv_heads"], row["head_size"], row["block_size"]
    blocks = max(row["pool"], sum(-(-context // block) for context in contexts))
    scores = sum(q * c for q, c in zip(queries, contexts, strict=True))
    if row["phase"] == "decode":
        # Who decodes all sequences at once reads each as long as the longest.
        scores = len(contexts) * max(contexts, default=0)
    return (
        2 * blocks * block * heads * size + 2 * sum(queries) * heads * row["gqa_ratio"] * size,
        2 * scores * heads * row["gqa_ratio"] * size,
    )


def _possible(op: str, row: Mapping[str, Any]) -> bool:
    """Whether the facts and the choice fit together at all."""
    if op == "rotary_embedding" and row["head_size"] % 2:
        return False
    if op == "rotary_embedding" and row["partial"]:  # which is even, and smaller than the head
        return bool(row["head_size"] >= 4)
    if op == "paged_attention" and row["phase"] == "decode":
        # One new token at the start of its sequence is a prefill; so is an empty batch.
        return bool(row["batch"] > 0 and row["context"] != "one")
    return True


def _declared(
    capability: Capability, op: str, row: Row, known: dict[tuple[Any, ...], bool]
) -> bool:
    facts = {name: row[name] for name in ("dtype", *OPERATORS[op].bind_facts)}
    key = tuple(facts.values())
    if key not in known:
        # Cheap first: what no entry accepts needs no resolving.
        operator = OPERATORS[op]
        entries = capability.operators.get(op, ())
        able = operator.composed_of is not None or any(
            isinstance(decide(operator, entry, facts), Accept) for entry in entries
        )
        known[key] = able and refusal(capability, op, facts) is None
    return known[key]


def _between(
    op: str,
    point: Point,
    dimensions: Mapping[str, Dimension],
    accepts: Callable[[Row], bool],
    random: Random,
) -> tuple[Point, ...]:
    """The calls between two equal ones: of other shapes, or of other facts.

    What must stay (how many KV heads a layer's cache has) stays.
    """
    if point.choice["history"] == "in turn":
        kept = {n: point.choice[n] for n in ("kv_heads", "ratio", "phase") if n in point.choice}
        found = [replace(point, choice=shape) for shape in _shapes(op, point.choice, random)]
        found.append(replace(point, choice={**plain(op), **kept}))
    elif point.choice["history"] == "other facts":
        others = _other_facts(point.facts, dimensions, random)
        found = [replace(point, facts=other) for other in others]
    else:
        return ()
    able = [other for other in found if accepts({**other.facts, **other.choice})]
    return tuple(able[:BETWEEN])


def _shapes(op: str, choice: Mapping[str, Any], random: Random) -> Iterator[dict[str, Any]]:
    """A little less of everything that is counted: scratch for one is found by the other."""
    less = dict(choice)
    for name in ("rows", "tokens", "queries", "context", "batch"):
        size = less.get(name)
        if isinstance(size, int) and size > 2:
            less[name] = size - random.randint(1, min(7, size - 2))
        elif isinstance(size, tuple) and size[-1] > 1:
            less[name] = (*size[:-1], size[-1] - random.randint(1, min(7, size[-1] - 1)))
    if less != choice:
        yield less


def _other_facts(
    mine: Facts, dimensions: Mapping[str, Dimension], random: Random
) -> Iterator[Facts]:
    """The facts with one of them changed: the next smaller size, and any other value."""
    names = [name for name in mine if len([*chain(*dimensions[name].values())]) > 1]
    random.shuffle(names)
    tried: list[list[Facts]] = []
    for name in names:
        values = [value for value in chain(*dimensions[name].values()) if value != mine[name]]
        random.shuffle(values)
        size, step = mine[name], random.randint(1, 16)
        if isinstance(size, int) and not isinstance(size, bool):
            # Scratch in whole tiles, and what is kept by a rounded size, is of both.
            near = [v for v in values if isinstance(v, int) and size * 0.6 < v < size]
            values = [*([size - step] if size > step else []), *near[:1], *values]
        tried.append([{**mine, name: value} for value in values[:4]])
    # Each fact once, then each once more.
    yield from (facts for turn in zip_longest(*tried) for facts in turn if facts is not None)
