"""L3: a block of a real model, as transformers calls it, is one graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.operators import DTYPES
from vllm_adapter.discovery.adapter import one_line
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import model_case, shape_of

KINDS: Final = ("llama", "qwen3")


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    """One dtype a model: what traces in one traces in all."""
    for kind in KINDS if target.capability else ():
        found = [model_case(target, kind, dtype) for dtype in DTYPES]
        first = next((case for case in found if isinstance(case, Case)), found[0])
        if isinstance(first, Case):
            yield Case(kind, first.params)
        else:
            yield NotDeclaredCase(kind, first.pointer, first.reason)


@rule(
    "L3.graph.block",
    summary="one decoder block of an adapted model compiles to one graph, and equals eager",
    why="A server compiles whole blocks. What breaks the graph in a model, and not in the "
    "decoder of L2.graph, is a layer's own: a head norm on views of the merged projection, "
    "padding, a table that is no tensor. Kernels of `form: torch` must trace without a break, "
    "and all others are behind their overload.",
    cases=_cases,
    needs=("L2.graph",),
    seconds=180.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """A prefill of unequal rows through the first block, compiled and eager."""
    import torch

    from vllm_adapter_conformance.device_side import models
    from vllm_adapter_conformance.models import tiny
    from vllm_adapter_conformance.ops.compiling import distance
    from vllm_adapter_conformance.ops.draw import RandomTensors

    shape, seed = shape_of(case), bench.target.seed
    given = tiny.padded(seed, left=True)
    rows, columns = given["input_ids"].shape
    draw = RandomTensors(seed, "block")
    x = draw.normal(rows, columns, shape.hidden, dtype=getattr(torch, shape.dtype))
    model = tiny.sent(shape, tiny.plain(shape, seed))
    seen = tiny.observed(bench, models.block, model=model, inputs=given, x=x)
    if "break" in seen:
        raise Failure("one graph", f"a break: {one_line(Exception(seen['break']))}")
    away = distance("a prefill", seen["got"], seen["want"])
    if seen["graphs"] != 1:
        raise Failure("one graph", f"{seen['graphs']}")
    return Observation(note=f"compiled differs from eager by {away:.3g} roundings")
