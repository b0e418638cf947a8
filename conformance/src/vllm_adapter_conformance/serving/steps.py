"""What a job can ask of an engine. Each step takes the engine and plain data, and gives such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Step = Mapping[str, Any]
_LOGPROBS: Final = 2


def generate(llm: Any, step: Step) -> dict[str, Any]:
    """Greedy tokens of requests that run together: `prompts`, `tokens` (how many, each), `abort`.

    The engine is stepped here, so that a request can be aborted while it runs (`abort`: its index
    and after how many tokens), and so that steps can be counted.
    """
    from vllm import SamplingParams

    engine = llm.llm_engine
    free, preempted = _free_blocks(engine), _preemptions(engine)
    for index, (prompt, count) in enumerate(zip(step["prompts"], step["tokens"], strict=True)):
        params = SamplingParams(
            temperature=0,
            max_tokens=count,
            ignore_eos=True,
            logprobs=_LOGPROBS,
            detokenize=False,
        )
        engine.add_request(_id(step, index), {"prompt_token_ids": prompt}, params)
    abort = dict(step.get("abort", ()))
    last: dict[str, Any] = {}
    first: dict[str, int] = {}
    most = passes = 0
    aborted: dict[int, int] = {}
    while engine.has_unfinished_requests():
        passes += 1
        for out in engine.step():
            last[out.request_id] = out
            first.setdefault(out.request_id, passes)
        most = max(most, free - _free_blocks(engine))
        for index, after in abort.items():
            got = last.get(_id(step, index))
            if index not in aborted and got and len(got.outputs[0].token_ids) >= after:
                aborted[index] = len(got.outputs[0].token_ids)
                engine.abort_request([_id(step, index)])
    kept = [last[_id(step, index)] for index in range(len(step["prompts"]))]
    return {
        "answers": [_answer(out, first[out.request_id]) for out in kept],
        "passes": passes,
        "aborted": sorted(aborted.items()),
        "most_blocks": most,
        "blocks_kept": free - _free_blocks(engine),
        "preemptions": _preemptions(engine) - preempted,
    }


def score(llm: Any, step: Step) -> list[list[float]]:
    """Log-probability of every token of given rows but the first, each after those before it."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    given = [{"prompt_token_ids": row} for row in step["rows"]]
    found = []
    for row, out in zip(step["rows"], llm.generate(given, params, use_tqdm=False), strict=True):
        places = zip(row[1:], out.prompt_logprobs[1:], strict=True)
        found.append([place[token].logprob for token, place in places])
    return found


def embed(llm: Any, step: Step) -> list[list[float]]:
    """One embedding a prompt."""
    given = [{"prompt_token_ids": prompt} for prompt in step["prompts"]]
    return [list(out.outputs.embedding) for out in llm.embed(given, use_tqdm=False)]


STEPS: Final[dict[str, Callable[[Any, Step], Any]]] = {
    "generate": generate,
    "score": score,
    "embed": embed,
}


def _id(step: Step, index: int) -> str:
    return f"{step['name']}-{index}"


def _answer(out: Any, first_pass: int) -> dict[str, Any]:
    places = out.outputs[0].logprobs
    best = [sorted((value.logprob for value in place.values()), reverse=True) for place in places]
    return {
        "tokens": list(out.outputs[0].token_ids),
        "gaps": [values[0] - values[1] for values in best],
        "cached": out.num_cached_tokens,
        "first_pass": first_pass,
    }


def _free_blocks(engine: Any) -> int:
    # upstream: vllm@0.32 v1/engine/core_client.py:378, v1/core/block_pool.py:868
    scheduler = engine.engine_core.engine_core.scheduler
    found: int = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return found


def _preemptions(engine: Any) -> int:
    """vLLM's own metric."""
    metrics = engine.get_metrics()
    return sum(int(m.value) for m in metrics if m.name == "vllm:num_preemptions")
