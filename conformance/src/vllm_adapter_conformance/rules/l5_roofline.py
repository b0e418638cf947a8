"""L5: what the device itself can do, measured before its operators are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from vllm_adapter.contract.operators import DTYPES
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.ops.cases import base_cases, declared
from vllm_adapter_conformance.performance.figures import Figure, figure
from vllm_adapter_conformance.performance.roofline import spell_rate, spell_seconds
from vllm_adapter_conformance.rules._roofline import compute_of, has_library, memory_of

ROOFLINE: Final = "L5.roofline"


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    yield Case("memory")
    for dtype in DTYPES if target.capability else ():
        if any(base.facts["dtype"] == dtype for base in base_cases(declared(target), "linear")):
            yield Case(dtype, {"dtype": dtype}, "/operators/linear")
        else:
            reason = f"no linear is declared in {dtype}"
            yield NotDeclaredCase(dtype, "/operators/linear", reason)


@rule(
    ROOFLINE,
    summary="the device's own rates of copies and products are measured, whatever they are",
    why="A figure in tokens a second says nothing of another chip, and a datasheet nothing of a "
    "board in its box. Copies and reads at four sizes, products of square matrices in each dtype "
    "(torch's; a C library's own linear) and an empty launch are timed several times each, from "
    "the judge's request to the answer that the device is done: no clock or event of the "
    "adapter's process is believed. Every operator is then held against them. The rates have no "
    "mark to pass: this fails where they cannot be had.",
    cases=_cases,
    needs=("L1.copy.round_trip",),
    seconds=180.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """Measures, or gives what an earlier case of this process has measured."""
    if case.id == "memory":
        return _memory(bench)
    seen = compute_of(bench, str(case.params["dtype"]))
    rows = [
        {
            "what": "gemm",
            "dtype": case.params["dtype"],
            "amount": row["flops"],
            "beyond_caches": None,
            "rate": row["rate"].to_json(),
        }
        for row in seen["rows"]
    ]
    best = max((row["rate"] for row in seen["rows"]), key=lambda rate: rate.median)
    by = "the adapter's linear" if has_library(bench.target) else "torch's matmul"
    return Observation(note=f"{spell_rate(best)} by {by}", figures={"rates": rows})


def _memory(bench: Bench) -> Observation:
    seen = memory_of(bench)
    if not seen["rows"]:
        raise Failure("room for copies of 256 KiB", "less free memory than eight times that")
    rows: list[dict[str, Any]] = [
        {
            "what": row["what"],
            "dtype": None,
            "amount": row["bytes"],
            "beyond_caches": row["beyond"],
            "rate": row["rate"].to_json(),
        }
        for row in seen["rows"]
    ]
    launch: Figure = figure(seen["launch"], "s")
    copy = [row["rate"] for row in seen["rows"] if row["what"] == "copy"][-1]
    figures = {
        "rates": rows,
        "cache_bytes": seen["cache_bytes"],
        "launch": launch.to_json(),
    }
    note = f"copy {spell_rate(copy)}, launch {spell_seconds(launch.median)}"
    return Observation(note=note, figures=figures)
