"""L4: the real server through `vllm-adapter serve`, and what clients do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.serving.compare import same_tokens
from vllm_adapter_conformance.serving.server import Server
from vllm_adapter_conformance.serving.shape import one_case

CONCURRENT: Final = 64
BUSY: Final = 1900
"""Tokens of a request that is still running when something happens to it."""
ENDS: Final = (0, 143)
"""How a server leaves on SIGTERM: with 0, or as the signal ends it."""
PATIENCE_S: Final = 5.0
"""How long a client waits for a server that is ending."""
END_S: Final = 60.0
"""The server must have ended this long after its last client has left."""
_COMPLETIONS: Final = "/v1/completions"


def completion(bench: Bench, server: Server) -> Observation:
    """One completion."""
    from vllm_adapter_conformance.serving import jobs

    prompt = jobs.server_prompts(bench.target.seed)[0]
    _right(bench, 0, _text(server, prompt))
    return Observation(note=f"{jobs.SERVER_NEW} tokens")


def chat(bench: Bench, server: Server) -> Observation:
    """A message whose template gives the prompt and no more."""
    from vllm_adapter_conformance.serving import jobs, models

    prompt = jobs.server_prompts(bench.target.seed)[1]
    message = {"role": "user", "content": models.words(prompt)}
    body = _body([]) | {"messages": [message]}
    del body["prompt"]
    status, answer = server.post("/v1/chat/completions", body)
    expect(status, 200, answer)
    _right(bench, 1, answer["choices"][0]["message"]["content"])
    return Observation(note=f"{len(prompt)} tokens in, {jobs.SERVER_NEW} out")


def streaming(bench: Bench, server: Server) -> Observation:
    """The pieces make the whole."""
    from vllm_adapter_conformance.serving import jobs

    prompt = jobs.server_prompts(bench.target.seed)[2]
    pieces = [e["choices"][0]["text"] for e in server.stream(_COMPLETIONS, _body(prompt))]
    _right(bench, 2, "".join(pieces))
    if len(pieces) < 2:
        raise Failure("several pieces", f"{len(pieces)}")
    return Observation(note=f"{len(pieces)} pieces")


def concurrent(bench: Bench, server: Server) -> Observation:
    """Many clients at once, each with its own answer."""
    from vllm_adapter_conformance.serving import jobs

    prompts = jobs.server_prompts(bench.target.seed)
    asked = [index % len(prompts) for index in range(CONCURRENT)]
    with ThreadPoolExecutor(CONCURRENT) as pool:
        texts = list(pool.map(lambda index: _text(server, prompts[index]), asked))
    whole = sum(map(_right, [bench] * CONCURRENT, asked, texts))
    return Observation(note=f"{CONCURRENT} answers, {CONCURRENT - whole} parted at a near tie")


def disconnect(bench: Bench, server: Server) -> Observation:
    """A client that leaves in the middle: its request ends, and the next is answered."""
    before = server.metric(_GENERATED)
    _running(bench, server).close()
    server.until("no request to be running", lambda: server.metric(_RUNNING) == 0)
    made = server.metric(_GENERATED) - before
    if made >= BUSY:
        raise Failure(f"fewer than {BUSY} tokens for a client that left", f"{made:g}")
    completion(bench, server)
    return Observation(note=f"ended after {made:g} of {BUSY} tokens")


def too_long(bench: Bench, server: Server) -> Observation:
    """More tokens than the model has positions."""
    from vllm_adapter_conformance.serving import models

    status, answer = server.post(_COMPLETIONS, _body([5] * (models.LONG + 1)))
    if not 400 <= status < 500:
        raise Failure("a status of 4xx", f"{status}: {answer}")
    completion(bench, server)
    return Observation(note=f"status {status}")


def counters(bench: Bench, server: Server) -> Observation:
    """Our operators ran in the server's own processes."""
    completion(bench, server)
    return calls_in(bench, server)


def calls_in(bench: Bench, server: Server) -> Observation:
    """What a server's processes have called so far.

    Raises:
        Failure: an operator that the model needs is not among it.
    """
    from vllm_adapter.engine.integrations.vllm.counters import read_counts
    from vllm_adapter_conformance.rules.l4_engine import by_process, uncalled

    rows: list[list[Any]] = [
        [one.process, op, provider, number]
        for one in read_counts(server.counters)
        for (op, provider), number in one.calls.items()
    ]
    case = one_case(bench.target, "qwen3", "counters")
    assert isinstance(case, Case)
    counted = by_process(rows)
    missing = uncalled(counted, bench.target.record.name, case)
    if missing:
        raise Failure(f"calls of {', '.join(missing)} in a process of the server", f"{counted}")
    note = f"{sum(row[-1] for row in rows)} calls in {', '.join(counted)}"
    return Observation(note=note, counters=counted)


def sigterm(bench: Bench, server: Server) -> Observation:
    """SIGTERM while a request runs, whose client gives up after a while."""
    running = _running(bench, server)
    server.terminate()
    server.wait(lambda: not server.is_up, PATIENCE_S)
    running.close()  # vLLM waits for a client that stays, though its engine has ended
    code = server.exit_code(END_S)
    if code not in ENDS:
        raise Failure(f"an exit code of {' or '.join(map(str, ENDS))}", f"{code}")
    return Observation(note=f"exit code {code}")


_CHECKS: Final[dict[str, Callable[[Bench, Server], Observation]]] = {
    check.__name__: check
    for check in (
        completion,
        chat,
        streaming,
        concurrent,
        disconnect,
        too_long,
        counters,
        sigterm,
    )
}
_RUNNING: Final = "vllm:num_requests_running"
_GENERATED: Final = "vllm:generation_tokens_total"


def _cases(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name in _CHECKS if target.capability else ():
        yield one_case(target, "qwen3", name)


@rule(
    "L4.server",
    summary="vLLM's server, started by vllm-adapter serve, answers right whatever clients do",
    why="What is deployed: several processes, many clients, some of which leave, ask too much or "
    "are still waiting when the server is told to stop. Answers are those of plain vLLM's engine; "
    "the calls of our operators are counted in the server's own processes. The server's log is "
    "in the failure.",
    cases=_cases,
    needs=("L4.tokens",),
    seconds=480.0,
)
def check(bench: Bench, case: Case) -> Observation:
    """One thing that clients do; the server is kept for the next case."""
    server = bench.serving.server
    try:
        return _CHECKS[case.id](bench, server)
    except Failure as failure:
        failure.detail = failure.detail or server.tail()
        raise


def _body(prompt: list[int]) -> dict[str, Any]:
    from vllm_adapter_conformance.serving import jobs

    return {
        "prompt": prompt,
        "max_tokens": jobs.SERVER_NEW,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }


def _text(server: Server, prompt: list[int]) -> str:
    status, answer = server.post(_COMPLETIONS, _body(prompt))
    expect(status, 200, answer)
    return str(answer["choices"][0]["text"])


def expect(status: int, wanted: int, answer: Any) -> None:
    """Raises Failure where a request was not answered with that status."""
    if status != wanted:
        raise Failure(f"status {wanted}", f"{status}: {answer}")


def _right(bench: Bench, index: int, text: str) -> bool:
    """Whether a text is plain vLLM's answer to the prompt of that index throughout."""
    from vllm_adapter_conformance.serving import models

    want = bench.serving.step("plain", "qwen3", "server")["answers"][index]
    what, dtype = f"the answer to prompt {index}", bench.serving.dtype
    return same_tokens(want, models.tokens_of(text), what, dtype)


def _running(bench: Bench, server: Server) -> Any:
    """A long stream that has begun, and that vLLM counts as running."""
    from vllm_adapter_conformance.serving import jobs

    prompt = jobs.server_prompts(bench.target.seed)[0]
    events = server.stream(_COMPLETIONS, _body(prompt) | {"max_tokens": BUSY})
    next(events)
    server.until("the request to be running", lambda: server.metric(_RUNNING) == 1)
    return events
