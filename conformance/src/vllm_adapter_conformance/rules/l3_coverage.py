"""L3: what of a model's steps a C library's device leaves to the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import model_case, shape_of
from vllm_adapter_conformance.rules.l1_library import library_of

if TYPE_CHECKING:
    from vllm_adapter.engine.runtime.device_from_clib.backend import Backend

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
    import torch

    from vllm_adapter.engine.runtime.device_from_clib.enable import enabled
    from vllm_adapter_conformance.models import tiny

    library = library_of(bench)
    backend = enabled()
    assert backend is not None
    model = tiny.plain(shape_of(case), bench.target.seed)
    given = tiny.padded(bench.target.seed, left=True)
    with tiny.adapted(bench, model) as mine, torch.no_grad():
        there: Any = {name: tensor.to(mine.device) for name, tensor in given.items()}
        backend.coverage.reset()
        with _refusals(backend) as refused:
            mine.generate(
                **there, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        counts = backend.coverage.counts()
    there_but_refused = {name: n for name, n in refused.items() if library.has(name)}
    if there_but_refused:
        raise Failure(
            "each function that is not NULL to take a step's work", _counts_text(refused)
        )
    if sum(counts.values()) != sum(refused.values()):
        raise Failure(
            f"as much on the host as was asked of NULL functions: {_counts_text(refused)}",
            _counts_text(counts),
        )
    return Observation(
        note=f"on the host: {_counts_text(counts)}; asked of NULL: {_counts_text(refused)}"
    )


@contextmanager
def _refusals(backend: Backend) -> Iterator[Mapping[str, int]]:
    """How often each function of plain tensor work was asked, and did not take the work."""
    refused: Counter[str] = Counter()
    kernels: Any = backend.kernels  # whose method is replaced for the length of the step
    ask = kernels.queue

    def counted(name: str, *arguments: Any) -> bool:
        taken: bool = ask(name, *arguments)
        refused[name] += not taken
        return taken

    kernels.queue = counted
    try:
        yield refused
    finally:
        kernels.queue = ask
        for name in [name for name, count in refused.items() if not count]:
            del refused[name]


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count} times" for name, count in counts.items()) or "nothing"
