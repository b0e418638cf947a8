"""L2: a decoder made of the adapter's bindings is one graph, without a compiler."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

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
    from vllm_adapter_conformance.models.decoder import LAYERS, Decoder
    from vllm_adapter_conformance.ops.compiling import Graphs, compiled, distance
    from vllm_adapter_conformance.ops.draw import RandomTensors

    shape = DecoderShape(**case.params["shape"])
    dtype = getattr(torch, shape.dtype)
    model = Decoder(bench, shape)
    draw = RandomTensors(bench.target.seed, "graph")
    zeros = torch.zeros(4, shape.block_size, KV_HEADS, shape.head_size, dtype=dtype)
    eager, traced = (
        [(bench.to_device(zeros), bench.to_device(zeros)) for _ in range(LAYERS)] for _ in range(2)
    )
    worst = 0.0
    for phase, contexts in zip(PHASES, (CONTEXTS[:1], CONTEXTS[1:]), strict=True):
        is_traced = phase in case.params["phases"]
        run, graphs = compiled(model) if is_traced else (model, Graphs())
        for lengths in contexts:
            new = lengths if phase == "prefill" else (1,) * len(lengths)
            step = make_step(new, lengths, TABLES, shape.block_size, bench.device)
            x = bench.to_device(draw.normal(sum(new), shape.hidden, dtype=dtype))
            model.plan(step)
            with torch.no_grad():
                pairs = zip(run(x, traced, step), model(x, eager, step), strict=True)
            written = zip(itertools.chain(*traced), itertools.chain(*eager), strict=True)
            where = f"{phase} to {lengths} tokens"
            worst = max(worst, *(distance(where, *pair) for pair in (*pairs, *written)))
            if is_traced and len(graphs.modules) != 1:
                raise Failure(
                    f"one graph for all {phase} steps", f"{len(graphs.modules)} after {where}"
                )
    return Observation(note=f"compiled differs from eager by {worst:.3g} roundings")
