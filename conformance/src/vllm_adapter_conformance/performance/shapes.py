"""The shapes at which operators are timed: three sizes of two phases, the same in every run.

small is one user of a small model, typical some users of a model of a billion parameters, large
a full batch of a layer as models of eight billion have it. Where a descriptor refuses a width,
head or block, the nearest that it takes stands in, and the certificate has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import OPERATORS, FactValue
from vllm_adapter_conformance.ops.cases import Facts, refusal, values
from vllm_adapter_conformance.performance.work import Work, work_of

SIZES: Final = ("small", "typical", "large")
PHASES: Final = ("decode", "prefill")
ITEM: Final = {"float32": 4, "float16": 2, "bfloat16": 2}

WIDTH: Final = {"small": 512, "typical": 2048, "large": 4096}
OUT: Final = {"small": 512, "typical": 8192, "large": 14336}
KV_HEADS: Final = {"small": 2, "typical": 8, "large": 8}
HEAD_SIZE: Final = {"small": 64, "typical": 128, "large": 128}
RATIO: Final = {"small": 1, "typical": 4, "large": 4}
TOKENS: Final = {
    "decode": {"small": 1, "typical": 16, "large": 128},
    "prefill": {"small": 128, "typical": 512, "large": 4096},
}
SEQUENCES: Final = {
    "decode": {"small": 1, "typical": 16, "large": 32},
    "prefill": {"small": 1, "typical": 2, "large": 4},
}
CONTEXT: Final = {
    "decode": {"small": 128, "typical": 512, "large": 2048},
    "prefill": {"small": 128, "typical": 256, "large": 2048},
}
WIDE: Final = {"in_features": WIDTH, "out_features": OUT, "hidden": WIDTH}
BY_SEQUENCE: Final = ("paged_attention", "attention")
WITHOUT_DECODE: Final = ("attention",)
"""Operators of encoders, which see a whole text at once."""


@dataclass(frozen=True)
class Shape:
    """One timed call: facts that bind it, and its sizes."""

    op: str
    phase: str
    size: str
    facts: Facts
    dims: Mapping[str, int]

    @property
    def work(self) -> Work:
        """What one call moves and computes."""
        return work_of(self.op, self.dims)


def timed_shapes(
    capability: Capability, op: str, dtype: str
) -> Iterator[tuple[str, str, Shape | Reject]]:
    """Phase, size and shape of one operator in a dtype; or why no width near to it is taken."""
    phases = PHASES[1:] if op in WITHOUT_DECODE else PHASES
    for phase, size in itertools.product(phases, SIZES):
        facts = _facts(capability, op, dtype, size)
        if isinstance(facts, Reject):
            yield phase, size, facts
        else:
            yield phase, size, Shape(op, phase, size, facts, _dims(op, facts, phase, size))


def _facts(capability: Capability, op: str, dtype: str, size: str) -> Facts | Reject:
    """The facts of a size, as near to it as the descriptor takes."""
    names = OPERATORS[op].bind_facts
    tried = [_nearest(capability, op, name, size) for name in names]
    first: Reject | None = None
    for combination in itertools.product(*tried):
        facts: Facts = {"dtype": dtype, **dict(zip(names, combination, strict=True))}
        found = refusal(capability, op, facts)
        if found is None:
            return facts
        first = first or found
    assert first is not None
    return first


def _nearest(capability: Capability, op: str, name: str, size: str) -> list[FactValue]:
    """What is tried for a fact, best first."""
    fact = OPERATORS[op].facts[name]
    if fact.off is not None:
        others = [value for value in fact.samples if value != fact.off]
        return [fact.off, *others]
    wanted = {
        **{wide: table[size] for wide, table in WIDE.items()},
        "head_size": HEAD_SIZE[size],
        "block_size": capability.kv.block_size,
        "gqa_ratio": RATIO[size],
    }[name]
    known = {int(value) for value in values(capability, OPERATORS[op], name)} - {wanted}
    return [wanted, *sorted(known, key=lambda value: abs(value - wanted))]


def _dims(op: str, facts: Facts, phase: str, size: str) -> dict[str, int]:
    sizes = {
        name: int(value)
        for name, value in facts.items()
        if name != "dtype" and not isinstance(value, (str, float))
    }
    sizes["item"] = ITEM[str(facts["dtype"])]
    if "head_size" in facts:
        sizes["kv_heads"] = KV_HEADS[size]
        sizes.setdefault("gqa_ratio", RATIO[size])
    if op in BY_SEQUENCE:
        context = CONTEXT[phase][size]
        query = 1 if phase == "decode" else context
        return sizes | {
            "sequences": SEQUENCES[phase][size],
            "query": query,
            "context": context,
        }
    return sizes | {"tokens": TOKENS[phase][size]}


def ladder(shapes: Sequence[Shape]) -> Iterator[Shape]:
    """What is tried for a device that takes too long: the first shape with fewer and fewer tokens,
    then the next.
    """
    for shape in shapes:
        less: Shape | None = shape
        while less is not None:
            yield less
            less = shrunk(less)


def shrunk(shape: Shape) -> Shape | None:
    """The shape with half as many tokens, or sequences, or half their length; None: no less."""
    dims = dict(shape.dims)
    if dims.get("tokens", 1) > 1:
        dims["tokens"] //= 2
    elif dims.get("sequences", 1) > 1:
        dims["sequences"] //= 2
    elif dims.get("context", 1) > 1:
        dims["context"] //= 2
        if dims["query"] > 1:
            dims["query"] = dims["context"]
    else:
        return None
    return Shape(shape.op, shape.phase, shape.size, shape.facts, dims)
