"""L4: engines of real vLLM on the adapter, held against plain vLLM on the same models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import shape_of
from vllm_adapter_conformance.serving.compare import same_answers, same_vectors
from vllm_adapter_conformance.serving.shape import KINDS, LOW, cases_of, one_case

COUNTERS: Final = "L4.counters"
TOKENS: Final = "L4.tokens"
SECONDS: Final = 480.0
"""The first rule that asks starts the engines of both sides."""
_ENGINES: Final = (
    "The engines run in one process a side, with a small KV cache and eager, in float32 or, "
    "where the descriptor has no float32, in the first dtype that it has; the block size is one "
    "that it declares. Plain vLLM runs in float32 with blocks of its own. `VA_FALLBACK` is warn, "
    "as users have it. "
)


@rule(
    COUNTERS,
    summary="vLLM runs the adapter's operators, each of those that the model needs",
    why=_ENGINES + "Every other rule of this level is worth nothing where vLLM ran its own "
    "kernels: the calls are counted in the process that runs the model. An operator without a "
    "call did not bind (vLLM's log says `vLLM keeps its own ...: reason`), or the adapter is not "
    "the one that serves vLLM here (`vllm-adapter doctor --vllm`).",
    cases=cases_of(*KINDS),
    needs=("L3.llama.generate", "L3.qwen3.generate"),
    seconds=SECONDS,
)
def check_counters(bench: Bench, case: Case) -> Observation:
    """Every operator of the model has been called, and by this adapter."""
    calls = bench.serving.engine("ours", case.id)["counters"]
    name = bench.target.record.name
    counted = by_process(calls)
    missing = uncalled(counted, name, case)
    if missing:
        platform = bench.serving.result("ours")["platform"]
        raise Failure(
            f"calls of {name}'s {', '.join(missing)} in the process that runs the model",
            f"none; vLLM's platform is {platform}, and what was counted is {counted}",
        )
    return Observation(note=f"{sum(row[-1] for row in calls)} calls", counters=counted)


def by_process(calls: list[list[Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """Process -> operator -> provider -> calls."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for process, op, provider, number in calls:
        found.setdefault(process, {}).setdefault(op, {})[provider] = number
    return found


def uncalled(counted: dict[str, dict[str, dict[str, int]]], adapter: str, case: Case) -> list[str]:
    """Operators that a model needs and that no process ran with the adapter."""
    ran = {
        op
        for ops in counted.values()
        for op, providers in ops.items()
        if any(adapter in provider.split("+") for provider in providers)
    }
    return [op for op in dict.fromkeys(op for op, _ in shape_of(case).needs()) if op not in ran]


@rule(
    TOKENS,
    summary="greedy tokens of tiny models are those of plain vLLM",
    why=_ENGINES + "A row may part from plain vLLM only where plain vLLM's best two logits are "
    "closer than 1e-4, in another dtype 16 times its epsilon; then half of the rows must not. "
    "Where L3 passes and this fails, look at what vLLM hands over in another "
    "form: the cache's strides, the block table, sequences of unequal phase in one batch.",
    cases=cases_of(*KINDS),
    needs=(COUNTERS,),
    seconds=SECONDS,
)
def check_tokens(bench: Bench, case: Case) -> Observation:
    """Four prompts that run together."""
    _, _, note = _both(bench, case.id, "tokens")
    return Observation(note=note)


@rule(
    "L4.unequal_batch",
    summary="rows of very unequal length, which end at different times, have plain vLLM's tokens",
    why="Servers batch whatever has come: prompts of one token and of a hundred, rows that have "
    "one token left and rows that have twenty. A kernel that takes the longest row's length, or "
    "an old one, for all of them fails here.",
    cases=cases_of("qwen3"),
    needs=(TOKENS,),
    seconds=SECONDS,
)
def check_unequal(bench: Bench, case: Case) -> Observation:
    """Six rows."""
    _, _, note = _both(bench, case.id, "unequal")
    return Observation(note=note)


@rule(
    "L4.chunked_prefill",
    summary="a prompt that is read in pieces has plain vLLM's tokens",
    why="A long prompt is read in several passes: queries of a later piece see the keys of all "
    "pieces before. Causality is counted from the end of the sequence, not of the query.",
    cases=cases_of("qwen3"),
    needs=(TOKENS,),
    seconds=SECONDS,
)
def check_chunked(bench: Bench, case: Case) -> Observation:
    """That the prompt took several passes is asserted."""
    _, ours, note = _both(bench, case.id, "chunked")
    passes = ours["answers"][0]["first_pass"]
    if passes < 2:
        raise Failure("the prompt to be read in several passes", f"{passes}")
    return Observation(note=f"{note}; {passes} passes to the first token")


@rule(
    "L4.prefix_caching",
    summary="prompts whose beginning is in the cache have plain vLLM's tokens",
    why="Blocks of an earlier request are used again. Their content must still be what was "
    "written, and a query that begins behind them must see them.",
    cases=cases_of("qwen3"),
    needs=(TOKENS,),
    seconds=SECONDS,
)
def check_prefix(bench: Bench, case: Case) -> Observation:
    """The second run's hits are asserted."""
    _both(bench, case.id, "cold")
    _, ours, note = _both(bench, case.id, "warm")
    cached = [answer["cached"] for answer in ours["answers"]]
    if min(cached) < shape_of(case).block_size:
        raise Failure("both prompts to find a block in the cache", f"{cached} tokens found")
    return Observation(note=f"{note}; {cached} tokens from the cache")


@rule(
    "L4.preemption",
    summary="rows that lose their blocks and begin again have plain vLLM's tokens",
    why="Where the KV cache is full, vLLM takes a row's blocks away and computes it anew later. "
    "What is left of it in a block that others use now must not be seen.",
    cases=cases_of("qwen3"),
    needs=(TOKENS,),
    seconds=SECONDS,
)
def check_preemption(bench: Bench, case: Case) -> Observation:
    """By vLLM's own metric it happened."""
    _, ours, note = _both(bench, case.id, "crowd")
    if not ours["preemptions"]:
        raise Failure("a preemption by vLLM's own metric", "none in a cache that is too small")
    return Observation(note=f"{note}; {ours['preemptions']} preemptions")


@rule(
    "L4.abort",
    summary="a running request is aborted: the others are right, and its blocks come back",
    why="Clients go away. The rest of the batch goes on in another order, without the row.",
    cases=cases_of("qwen3"),
    needs=(TOKENS,),
    seconds=SECONDS,
)
def check_abort(bench: Bench, case: Case) -> Observation:
    """It was running, others went on, no block is kept."""
    from vllm_adapter_conformance.serving import jobs

    _, ours, note = _both(bench, case.id, "abort")
    aborted = dict(ours["aborted"])
    if aborted != {jobs.ABORTED: jobs.ABORT_AFTER}:
        raise Failure("one request to be aborted while it runs", f"aborted: {aborted}")
    if ours["blocks_kept"] or not ours["most_blocks"]:
        raise Failure(
            "all blocks to come back",
            f"{ours['blocks_kept']} of {ours['most_blocks']} kept",
        )
    return Observation(note=f"{note}; {ours['most_blocks']} blocks came back")


@rule(
    "L4.bf16",
    summary="log-probabilities in bfloat16 are as close to float32 as plain vLLM's own",
    why="Free-running tokens part in bfloat16 even between two runs of plain vLLM, so given "
    "tokens are scored. Truth is plain vLLM in float32; ours in bfloat16 may be four times as "
    "far from it as plain vLLM in bfloat16 is, as the root of the mean square.",
    cases=cases_of("qwen3", dtype=LOW),
    needs=(TOKENS,),
    seconds=SECONDS,
)
def check_low(bench: Bench, case: Case) -> Observation:
    """Every token of four rows."""
    import torch

    from vllm_adapter_conformance.models import tiny

    serving = bench.serving
    truth = torch.tensor(serving.step("plain", "qwen3", "score"))
    reference = torch.tensor(serving.step("plain", LOW, "score"))
    ours = torch.tensor(serving.step("ours", LOW, "score"))
    missing = uncalled(
        by_process(serving.engine("ours", LOW)["counters"]), bench.target.record.name, case
    )
    if missing:
        raise Failure(f"calls of {', '.join(missing)} in bfloat16", "none")
    share = tiny.share(ours, reference, truth)
    if share > 1:
        raise Failure(
            f"log-probabilities within {tiny.TIMES:g} times plain vLLM's own distance "
            "from float32",
            f"{share:.3g} of that",
            share=share,
        )
    return Observation(share, f"{truth.numel()} tokens scored")


@rule(
    "L4.embeddings",
    summary="embeddings of a tiny Qwen3 are those of plain vLLM",
    why="vLLM's pooling runner takes other paths to the same layers: no sampling, hidden states "
    "of the last token, normalised. In float32 the vectors, whose length is 1, agree to 1e-4, in "
    "another dtype to four times its epsilon.",
    cases=cases_of("qwen3"),
    needs=(TOKENS,),
    seconds=SECONDS,
)
def check_embeddings(bench: Bench, case: Case) -> Observation:
    """Four prompts."""
    serving = bench.serving
    want = serving.step("plain", "embed", "embed")
    got = serving.step("ours", "embed", "embed")
    missing = uncalled(
        by_process(serving.engine("ours", "embed")["counters"]), bench.target.record.name, case
    )
    if missing:
        raise Failure(f"calls of {', '.join(missing)} by the pooling runner", "none")
    return Observation(
        same_vectors(want, got, serving.dtype), f"{len(want)} vectors of {len(want[0])}"
    )


def refused(bench: Bench, case: Case) -> Observation:
    """The model's folder has no weights at all: they cannot have been read."""
    found = bench.serving.result("experts")
    error = found["engines"].get("experts", found).get("error", "nothing: it started")
    if "mixture of experts" not in error:
        raise Failure("a refusal that names the mixture of experts", error)
    return Observation(note=error.splitlines()[0])


def check_routed_layers(bench: Bench, case: Case) -> Observation:
    """The routed layers are vLLM's, all others the adapter's, and the reason is said once."""
    _, _, note = _both(bench, "mixture", "tokens")
    counted = by_process(bench.serving.engine("ours", "mixture")["counters"])
    missing = [op for op in uncalled(counted, bench.target.record.name, case) if op not in _ROUTED]
    if missing:
        raise Failure(f"calls of {', '.join(missing)} beside vLLM's own routed layers", "none")
    times = bench.serving.log("ours").count(_KEEPS)
    if times != 1:
        raise Failure(f"one line in the log with `{_KEEPS}`", f"{times}")
    return Observation(note=note)


_ROUTED: Final = ("silu_and_mul",)
"""Operators that are inside of vLLM's routed layers."""
_KEEPS: Final = "vLLM keeps its own mixture of experts: "
_EXPERTS: Final = {"refused": refused, "left": check_routed_layers}


def _experts(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name in _EXPERTS if target.capability else ():
        yield one_case(target, "qwen3", name)


@rule(
    "L4.experts",
    summary="a mixture of experts is refused before weights are read, or left to vLLM",
    why="There is no operator for routed layers. Under VA_FALLBACK=error that is said in one "
    "sentence when the engine's configuration is made; under warn and allow vLLM keeps its own "
    "routed layers, says so once, and gives plain vLLM's tokens.",
    cases=_experts,
    needs=(COUNTERS,),
    seconds=SECONDS,
)
def check_experts(bench: Bench, case: Case) -> Observation:
    """Both answers to a model that no adapter runs in every part."""
    return _EXPERTS[case.id](bench, case)


def _both(bench: Bench, engine: str, step: str) -> tuple[Any, Any, str]:
    want = bench.serving.step("plain", engine, step)
    got = bench.serving.step("ours", engine, step)
    return want, got, same_answers(want, got, dtype=bench.serving.dtype)
