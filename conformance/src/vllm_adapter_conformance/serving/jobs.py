"""The jobs of one run: which engines start, and what each is asked. All of it from the seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from vllm_adapter.contract.decision import Reject
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.shape import VOCABULARY, ModelShape
from vllm_adapter_conformance.ops.draw import RandomTensors
from vllm_adapter_conformance.serving import models
from vllm_adapter_conformance.serving.shape import KINDS, LOW, served

Prompts = list[list[int]]
NEW: Final = 24
CHUNK: Final = 48
"""Tokens of one pass: a longer prompt is read in pieces."""
SHARED: Final = 70
"""Tokens that the prompts of the prefix cache have in common."""
LONG_PROMPT: Final = 100
ABORTED: Final = 1
ABORT_AFTER: Final = 5
CROWD: Final = (60, 61, 62, 60)
REFERENCE_BLOCK: Final = 32
"""Tokens of a block of plain vLLM's: every CPU kernel of its own takes that."""
_TOKENS_KEPT: Final = 2048
MEMORY: Final = 0.3
"""Share of a device's memory that one engine may take: two run at the same time."""
SERVER_LENGTHS: Final = (3, 17, 40, 8, 33, 1, 24, 64)
SERVER_NEW: Final = 8


def drawn(seed: int, name: str, *lengths: int) -> Prompts:
    """Prompts of random tokens, none of them special."""
    draw = RandomTensors(seed, "serving", name)
    return [draw.integers(3, VOCABULARY, length).tolist() for length in lengths]


def server_prompts(seed: int) -> Prompts:
    """What the server is asked; plain vLLM answers the same in `steps`."""
    return drawn(seed, "server", *SERVER_LENGTHS)


def engines(target: Target, folder: Path) -> list[dict[str, Any]]:
    """The job of one side, plain or ours: every engine that the descriptor lets start.

    Saves the models on the way.
    """
    found, seed = [], target.seed
    for kind in KINDS:
        shape = served(target, kind)
        if isinstance(shape, Reject):
            continue
        path = models.save(shape, seed, folder / kind, form="generate")
        if kind == "llama":
            found.append(_engine(kind, path, _options(shape), [_tokens(seed, kind)]))
            continue
        options = _options(shape) | {
            "max_num_batched_tokens": CHUNK,
            "num_gpu_blocks_override": _few_blocks(shape),
        }
        found.append(_engine(kind, path, options, _steps(seed)))
        low = served(target, kind, LOW)
        if not isinstance(low, Reject):
            found.append(_engine(LOW, path, _options(low), [_score(seed)]))
        body = models.save(shape, seed, folder / "embed", form="embed")
        wanted = _options(shape) | {"runner": "pooling", "skip_tokenizer_init": False}
        asked = {"embed": drawn(seed, "embed", 5, 16, 33, 1), "server": server_prompts(seed)}
        steps = [{"name": n, "kind": "embed", "prompts": given} for n, given in asked.items()]
        found.append(_engine("embed", body, wanted, steps))
        routed = models.save(shape, seed, folder / "mixture", form="mixture")
        found.append(_engine("mixture", routed, _options(shape), [_tokens(seed, "mixture")]))
    return found


def reference(engines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same job for plain vLLM: in float32 but for the engine in bfloat16, with its own blocks,
    and as many as it needs."""
    return [
        engine
        | {
            "options": engine["options"]
            | {
                "dtype": LOW if engine["name"] == LOW else "float32",
                "block_size": REFERENCE_BLOCK,
                "num_gpu_blocks_override": _TOKENS_KEPT // REFERENCE_BLOCK,
            }
        }
        for engine in engines
    ]


def experts(target: Target, folder: Path) -> list[dict[str, Any]]:
    """The job of an engine that must be refused."""
    shape = served(target, "qwen3")
    assert isinstance(shape, ModelShape), "asked for only where qwen3 is declared"
    path = models.save(shape, target.seed, folder / "experts", form="experts")
    return [_engine("experts", path, _options(shape), [])]


def _engine(
    name: str, model: Path, options: dict[str, Any], steps: list[dict[str, Any]]
) -> dict[str, Any]:
    return {"name": name, "model": str(model), "options": options, "steps": steps}


def _options(shape: ModelShape) -> dict[str, Any]:
    return {
        "dtype": shape.dtype,
        "block_size": shape.block_size,
        "enforce_eager": True,
        "max_model_len": 128,
        "max_num_seqs": 8,
        "num_gpu_blocks_override": _TOKENS_KEPT // shape.block_size,
        "gpu_memory_utilization": MEMORY,
        "skip_tokenizer_init": True,
        "disable_log_stats": False,
        "async_scheduling": False,
        "seed": 0,
    }


def _few_blocks(shape: ModelShape) -> int:
    """Blocks that hold the crowd's prompts and one block more, while each row grows by one.

    One block of vLLM's is never given out.
    """
    return 2 + sum(math.ceil(length / shape.block_size) for length in CROWD)


def _tokens(seed: int, kind: str) -> dict[str, Any]:
    return _generate("tokens", drawn(seed, kind, 5, 16, 33, 1))


def _score(seed: int) -> dict[str, Any]:
    return {"name": "score", "kind": "score", "rows": drawn(seed, "score", *[LONG_PROMPT] * 4)}


def _steps(seed: int) -> list[dict[str, Any]]:
    shared = drawn(seed, "shared", SHARED)[0]
    crowd = drawn(seed, "crowd", *CROWD)
    return [
        _tokens(seed, "qwen3"),
        _generate(
            "unequal",
            drawn(seed, "unequal", 1, 31, 32, 33, LONG_PROMPT, 5),
            tokens=[NEW, 3, 1, 20, 10, 7],
        ),
        _generate("chunked", drawn(seed, "chunked", LONG_PROMPT)),
        _generate("cold", [shared + tail for tail in drawn(seed, "cold", 3)], tokens=[8]),
        _generate("warm", [shared + tail for tail in drawn(seed, "warm", 9, 1)], tokens=[8, 8]),
        _generate("crowd", crowd),
        _generate("abort", drawn(seed, "abort", 20, 30, 40), abort=[[ABORTED, ABORT_AFTER]]),
        _generate("server", server_prompts(seed), tokens=[SERVER_NEW] * len(SERVER_LENGTHS)),
        _score(seed),
    ]


def _generate(
    name: str,
    prompts: Prompts,
    *,
    tokens: list[int] | None = None,
    abort: list[list[int]] | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "generate",
        "prompts": prompts,
        "tokens": tokens or [NEW] * len(prompts),
        "abort": abort or [],
    }
