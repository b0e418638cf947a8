"""A decode step of Qwen3-0.6B's shape on a GPU: ours by graphs, ours eager, plain transformers.

    python benchmarks/decode_gpu.py [--batch 1 16] [--context 1024] [--rounds 3]

Random weights, bfloat16. Each round runs all three, one after the other; the medians of steps of
all rounds are printed with their range over rounds.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from vllm_adapter import Generator, adapt, unadapt

SHAPE = Qwen3Config(
    vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=8192,
    tie_word_embeddings=True, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
WARM, STEPS = 12, 60


def plain(model: torch.nn.Module, prompts: torch.Tensor) -> float:
    """Milliseconds of transformers' eager step, with its own cache."""
    out = model(prompts, use_cache=True)
    cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)

    def step() -> None:
        nonlocal token
        out = model(token, past_key_values=cache, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        token.cpu()

    return timed(step)


def ours(model: torch.nn.Module, prompts: torch.Tensor, *, graphs: bool) -> float:
    """Milliseconds of a Generator's step; the model is adapted."""
    generator = Generator(model, graphs=graphs, context=prompts.shape[1] + 2 * (WARM + STEPS))
    running = [generator.add(p.tolist(), max_new_tokens=WARM + STEPS + 8) for p in prompts]
    found = timed(generator.step)
    for request in running:
        generator.abort(request)
    while generator.busy:
        generator.step()
    return found


def timed(step: Callable[[], object]) -> float:
    """The median of `STEPS` steps, in milliseconds."""
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def main() -> None:
    """Prints a line a batch and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(copy.deepcopy(SHAPE)).to(torch.bfloat16).eval()
    for batch in given.batch:
        prompts = torch.randint(3, 1000, (batch, given.context), device="cuda")
        found: dict[str, list[float]] = {"plain": [], "ours, eager": [], "ours, graphs": []}
        for _ in range(given.rounds):
            with torch.inference_mode():
                found["plain"].append(plain(model, prompts))
            adapt(model, "cuda")
            found["ours, eager"].append(ours(model, prompts, graphs=False))
            found["ours, graphs"].append(ours(model, prompts, graphs=True))
            unadapt(model)
        for way, times in found.items():
            low, high = min(times), max(times)
            middle = statistics.median(times)
            print(f"batch {batch:3} {way:14} {middle:7.2f} ms a step [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
