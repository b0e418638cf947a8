"""Runs a tiny decoder again and again in a process of its own, in which a fault may strike.

usage: python -m vllm_adapter_conformance.performance.fault_child FOLDER. `order.pt` in it has the
target and the model; one JSON object a line is printed: `{"begun": true}` before the first round,
then for each round the `error` (null: none), its `words`, whether it is `typed`, the `digest` of
the results and how many allocations are `left`. The results of the first right round are kept in
`results.pt`.
"""

from __future__ import annotations

import gc
import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import torch

from vllm_adapter.errors import VllmAdapterError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.models.decoder_shape import DecoderShape
from vllm_adapter_conformance.performance.tiny_decoder import TinyDecoder, run_script

TYPED: Final = (VllmAdapterError, torch.OutOfMemoryError)


def main(folder: Path) -> None:
    """Runs the rounds of the order."""
    order = torch.load(folder / "order.pt", weights_only=True)
    target = Target.from_json(json.loads(order["target"]))
    bench, kept = Bench(target), folder / "results.pt"
    say({"begun": True})
    for _ in range(order["rounds"]):
        found: dict[str, Any] = {"error": None, "words": "", "typed": True, "digest": None}
        try:
            results = one_round(bench, order)
            found["digest"] = sha256(results.view(torch.uint8).numpy().tobytes()).hexdigest()
            if not kept.exists():
                torch.save(results, kept)
        except Exception as error:
            found |= {
                "error": type(error).__name__,
                "words": str(error)[:500],
                "typed": isinstance(error, TYPED),
            }
        gc.collect()
        say(found | {"left": _left(bench)})


def one_round(bench: Bench, order: dict[str, Any]) -> torch.Tensor:
    """Everything anew, as after a restart of the engine: weights, cache and script.

    Gives [rows, hidden] on the host.
    """
    shape, script = DecoderShape(**order["shape"]), order["script"]
    blocks = 4 * len(script["lengths"])
    decoder = TinyDecoder(bench, shape, order["weights"], blocks=blocks)
    try:
        with torch.no_grad():
            prompt, *steps = (bench.to_device(x) for x in (script["prompt"], *script["steps"]))
            results = run_script(decoder, script["lengths"], prompt, steps)
            found = torch.cat([part.cpu() for part in results])
            bench.runtime.synchronize_stream(bench.opened.record.index)
            return found
    finally:
        decoder.close()


def say(row: dict[str, Any]) -> None:
    """One line to whoever waits."""
    print(json.dumps(row), flush=True)


def _left(bench: Bench) -> int | None:
    try:
        return bench.runtime.memory_stats(bench.opened.record.index).live_allocations
    except VllmAdapterError:
        return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
