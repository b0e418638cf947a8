"""L2: a decoder made of the adapter's bindings is one graph, without a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import DTYPES
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.decoder_shape import KV_HEADS, DecoderShape, decoder_shape
from vllm_adapter_conformance.ops.cases import declared

CONTEXTS: Final = ((5, 2), (6, 3), (7, 4), (8, 5))
"""Tokens of two sequences after a prefill, then after each decode step."""
PHASES: Final = ("prefill", "decode")
TABLES: Final = [[2, 0], [1, 3]]


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    first = True
    for dtype in DTYPES if target.capability else ():
        shape = decoder_shape(declared(target), dtype)
        if isinstance(shape, Reject):
            yield NotDeclaredCase(dtype, shape.pointer, str(shape))
        else:
            # Between dtypes a prefill's graph differs in nothing that decode's does not show.
            yield Case(dtype, {"shape": asdict(shape), "phases": PHASES if first else PHASES[1:]})
            first = False


@rule(
    "L2.graph",
    summary="two decoder layers compile to one graph, equal eager, and compile once for decode",
    why="A graph break or a compile for each step costs a server its speed, and a write that the "
    "schema does not show costs it its correctness: the compiler reorders or drops it. Read "
    "lengths on the host in `plan`, never in a kernel of `form: torch`; write into the arguments "
    "you were given; keep what differs between steps behind the handle.",
    cases=_cases,
    needs=("L2.opcheck",),
    seconds=180.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """A prefill and decode steps, eager and compiled, over caches of their own."""
    import torch

    from vllm_adapter.engine.ops.step import make_step
    from vllm_adapter_conformance.device_side.decoder import phases
    from vllm_adapter_conformance.models.decoder import decoder
    from vllm_adapter_conformance.ops.compiling import distance
    from vllm_adapter_conformance.ops.draw import RandomTensors
    from vllm_adapter_conformance.ops.runs import fields_of

    shape = DecoderShape(**case.params["shape"])
    dtype = getattr(torch, shape.dtype)
    draw = RandomTensors(bench.target.seed, "graph")
    zeros = torch.zeros(4, shape.block_size, KV_HEADS, shape.head_size, dtype=dtype)
    steps: list[list[dict[str, Any]]] = []
    places = []
    for phase, contexts in zip(PHASES, (CONTEXTS[:1], CONTEXTS[1:]), strict=True):
        steps.append([])
        for lengths in contexts:
            new = lengths if phase == "prefill" else (1,) * len(lengths)
            step = fields_of(make_step(new, lengths, TABLES, shape.block_size))
            x = draw.normal(sum(new), shape.hidden, dtype=dtype)
            traced = phase in case.params["phases"]
            steps[-1].append({"x": x, "step": step, "traced": traced})
            places.append((phase, f"{phase} to {lengths} tokens", traced))
    seen = bench.observe(phases, shape=decoder(bench, shape), cache=zeros, steps=steps)
    worst = 0.0
    for (phase, where, traced), found in zip(places, seen, strict=True):
        pairs = zip(found["got"], found["want"], strict=True)
        worst = max(worst, *(distance(where, got, want) for got, want in pairs))
        if traced and found["graphs"] != 1:
            raise Failure(f"one graph for all {phase} steps", f"{found['graphs']} after {where}")
    return Observation(note=f"compiled differs from eager by {worst:.3g} roundings")
