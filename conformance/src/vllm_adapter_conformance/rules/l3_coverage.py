"""L3: what of a model's steps a C library's device leaves to the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import model_case, shape_of

NEW: Final = 6
"""Tokens generated behind the prefill."""


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    manifest = target.record.manifest
    section = manifest.device if manifest else None
    if section is None or section.library is None:
        reason = "the device is torch's own, and not a C library's"
        yield NotDeclaredCase("llama-float32", "/device/library", reason)
    elif target.capability:
        yield model_case(target, "llama", "float32")


@rule(
    "L3.coverage.step",
    summary="a model's steps run on the host what the library has no function for, and no more",
    why="Each aten operator without a kernel costs a copy to the host and back, at every step; "
    "one that falls back in silence makes a device look as if it ran the model. Every piece of "
    "plain tensor work that a step asks of the library is counted here: a function that is there "
    "must take it, and the device's own counter (torch.<name>.fallbacks()) must be as high as "
    "what was asked of functions that are NULL.",
    cases=_cases,
    needs=("L3.llama.generate",),
    seconds=120.0,
)
def check_step(bench: Bench, case: Case) -> Observation:
    """Greedy generation of a tiny Llama: a prefill, then decode steps."""
    from vllm_adapter_conformance.device_side import models
    from vllm_adapter_conformance.models import tiny

    shape, seed = shape_of(case), bench.target.seed
    model = tiny.sent(shape, tiny.plain(shape, seed))
    given = tiny.padded(seed, left=True)
    seen = tiny.observed(bench, models.covered, model=model, inputs=given, new=NEW)
    counts, asked = seen["counts"], seen["asked"]
    if any(seen["has"].values()):
        raise Failure("each function that is not NULL to take a step's work", _counts_text(asked))
    if sum(counts.values()) != sum(asked.values()):
        raise Failure(
            f"as much on the host as was asked of NULL functions: {_counts_text(asked)}",
            _counts_text(counts),
        )
    return Observation(
        note=f"on the host: {_counts_text(counts)}; asked of NULL: {_counts_text(asked)}"
    )


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count} times" for name, count in counts.items()) or "nothing"
