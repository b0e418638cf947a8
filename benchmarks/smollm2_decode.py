"""Decode speed of SmolLM2-135M in float32: plain transformers against the same model adapted.

    python benchmarks/smollm2_decode.py [--rounds 9] [--steps 16] [--context 64] [--threads N]

Each round decodes the same steps with both, one after the other, in turns who is first; the
prompt is read beforehand and not timed. The median of the rounds, and in brackets an interval
that holds the true median with at least 95 % (by order statistics; it needs six rounds). A
ratio is taken within each pair, so that a busy moment of the machine hits both sides of it.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import smollm2

from vllm_adapter.engine.integrations.transformers import adapt, cache_argument

BATCHES: Final = (1, 4, 16)
TEXT: Final = "Once upon a time, in a village between two mountains, there lived a clockmaker. "


def main() -> int:
    """Prints one table."""
    options = _options()
    if options.threads:
        torch.set_num_threads(options.threads)
    plain, tokenizer = smollm2.load()
    mine = copy.deepcopy(plain)
    adapt(mine)
    ids = tokenizer(TEXT * options.context, return_tensors="pt").input_ids[:, : options.context]
    print(
        f"float32, {torch.get_num_threads()} threads, torch {torch.__version__}, context "
        f"{options.context}, {options.steps} steps a round, {options.rounds} rounds"
    )
    print("batch  model      ms a step               tokens/s                plain / adapted")
    for batch in BATCHES:
        prompt = ids.expand(batch, -1)
        times = _rounds(plain, mine, prompt, options.rounds, options.steps)
        ratios = [p / m for p, m in zip(*times, strict=True)]
        for name, seconds in zip(("plain", "adapted"), times, strict=True):
            step = _median([1e3 * s / options.steps for s in seconds])
            speed = _median([batch * options.steps / s for s in seconds])
            ratio = _median(ratios, 2) if name == "adapted" else ""
            print(f"{batch:5}  {name:9}  {step:22}  {speed:22}  {ratio}", flush=True)
    return 0


def _rounds(
    plain: Any, mine: Any, prompt: torch.Tensor, rounds: int, steps: int
) -> tuple[list[float], list[float]]:
    """Seconds of each round, plain and adapted."""
    for model in (plain, mine):
        _decode(model, prompt, 2)  # warm
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        pair = [(plain, found[0]), (mine, found[1])]
        for model, seconds in pair if turn % 2 else reversed(pair):
            seconds.append(_decode(model, prompt, steps))
    return found


@torch.inference_mode()
def _decode(model: Any, prompt: torch.Tensor, steps: int) -> float:
    """Seconds for `steps` greedy steps after the prompt."""
    cache = cache_argument(model)
    out = model(prompt, logits_to_keep=1)
    started = time.perf_counter()
    for _ in range(steps):
        token = out.logits[:, -1:].argmax(-1)
        out = model(token, logits_to_keep=1, **{cache: out[cache]})
    return time.perf_counter() - started


def _median(values: Sequence[float], digits: int = 1) -> str:
    """The median, and the order statistics that hold the true one with at least 95 %."""
    ordered, count = sorted(values), len(values)
    below, cut = 0.5**count, 0
    while below + math.comb(count, cut + 1) * 0.5**count <= 0.025:
        cut += 1
        below += math.comb(count, cut) * 0.5**count
    middle = statistics.median(ordered)
    return f"{middle:.{digits}f} [{ordered[cut]:.{digits}f}, {ordered[-1 - cut]:.{digits}f}]"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="decode speed, plain against adapted")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--context", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
