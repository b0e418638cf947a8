"""L4: the real server as embeddings are asked of it, one client and many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.rules.l4_server import CONCURRENT, calls_in, expect
from vllm_adapter_conformance.serving.compare import same_vectors
from vllm_adapter_conformance.serving.server import Server
from vllm_adapter_conformance.serving.shape import one_case

_PATH: Final = "/v1/embeddings"
Prompt = str | list[int]


def tokens(bench: Bench, server: Server) -> Observation:
    """Several prompts in one request, as token numbers."""
    prompts = _prompts(bench)
    return _right(bench, range(len(prompts)), _ask(server, prompts))


def text(bench: Bench, server: Server) -> Observation:
    """The same as words, which the server reads with the model's tokenizer."""
    from vllm_adapter_conformance.serving import models

    prompts = _prompts(bench)
    return _right(bench, range(len(prompts)), _ask(server, list(map(models.words, prompts))))


def concurrent(bench: Bench, server: Server) -> Observation:
    """Many clients at once, each with its own answer."""
    prompts = _prompts(bench)
    asked = [index % len(prompts) for index in range(CONCURRENT)]
    with ThreadPoolExecutor(CONCURRENT) as pool:
        found = list(pool.map(lambda index: _ask(server, [prompts[index]])[0], asked))
    return _right(bench, asked, found)


def too_long(bench: Bench, server: Server) -> Observation:
    """More tokens than the model has positions; the next request is answered."""
    from vllm_adapter_conformance.serving import models

    status, answer = server.post(_PATH, {"input": [5] * (models.LONG + 1)})
    if not 400 <= status < 500:
        raise Failure("a status of 4xx", f"{status}: {answer}")
    tokens(bench, server)
    return Observation(note=f"status {status}")


def counters(bench: Bench, server: Server) -> Observation:
    """Our operators ran in the server's own processes."""
    tokens(bench, server)
    return calls_in(bench, server)


_CHECKS: Final[dict[str, Callable[[Bench, Server], Observation]]] = {
    check.__name__: check for check in (tokens, text, concurrent, too_long, counters)
}


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name in _CHECKS if target.capability else ():
        yield one_case(target, "qwen3", name)


@rule(
    "L4.embeddings_server",
    summary="vLLM's server, started by vllm-adapter serve, embeds as plain vLLM does",
    why="Embeddings are deployed behind `/v1/embeddings`, with many clients at once. Each gets "
    "its own vectors, whatever is in the batch beside them: in float32 they agree with those of "
    "plain vLLM's engine to 1e-4, in another dtype to four times its epsilon. The calls of our "
    "operators are counted in the server's own "
    "processes. The server's log is in the failure.",
    cases=_cases,
    needs=("L4.embeddings",),
    seconds=480.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """One thing that clients ask; the server is kept for the next case."""
    server = bench.serving.embedder
    try:
        return _CHECKS[case.id](bench, server)
    except Failure as failure:
        failure.detail = failure.detail or server.tail()
        raise


def _prompts(bench: Bench) -> list[list[int]]:
    from vllm_adapter_conformance.serving import jobs

    return jobs.server_prompts(bench.target.seed)


def _ask(server: Server, prompts: Sequence[Prompt]) -> list[list[float]]:
    status, answer = server.post(_PATH, {"input": list(prompts)})
    expect(status, 200, answer)
    rows: list[dict[str, Any]] = sorted(answer["data"], key=lambda row: row["index"])
    return [row["embedding"] for row in rows]


def _right(bench: Bench, asked: Sequence[int], found: list[list[float]]) -> Observation:
    """Holds vectors against plain vLLM's of the prompts with those indices."""
    want = bench.serving.step("plain", "embed", "server")
    share = same_vectors([want[index] for index in asked], found, bench.serving.dtype)
    return Observation(share, f"{len(found)} vectors of {len(found[0])}")
