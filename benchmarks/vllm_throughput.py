"""Real vLLM in-process on this machine: start-up and decoding, plain and on our platform.

    python benchmarks/vllm_throughput.py MODEL

Three modes, each in a process of its own, run in turn `--rounds` times: plain vLLM, our platform
with every kernel vLLM's own, and our platform with the CPU adapter's operators. Printed: seconds
to start, and tokens a second over a batch, as medians with the range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from serve_latency import without_operators

CHILD = """
import json, sys, time
started = time.perf_counter()
from vllm import LLM, SamplingParams
model, tokens, batches = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=512)
result = {"start": time.perf_counter() - started}
options = SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
prompts = [f"Story number {i}: a small robot" for i in range(max(batches))]
llm.generate(prompts[:1], options, use_tqdm=False)
for batch in batches:
    begun = time.perf_counter()
    llm.generate(prompts[:batch], options, use_tqdm=False)
    result[str(batch)] = batch * tokens / (time.perf_counter() - begun)
print("RESULT" + json.dumps(result))
"""


def measure(
    model: str, tokens: int, batches: list[int], variables: dict[str, str]
) -> dict[str, float]:
    """One engine's start and rates; leaves with its last lines if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, model, str(tokens), json.dumps(batches)],
        env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | variables,
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if done.returncode or not lines:
        sys.exit("\n".join(done.stderr.splitlines()[-15:]))
    found: dict[str, float] = json.loads(lines[-1].removeprefix("RESULT"))
    return found


def main() -> None:
    """Runs all modes and prints one line each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 5, 16])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        empty = str(without_operators(Path(folder)))
        modes = {
            "plain vLLM": {"VLLM_PLUGINS": ""},
            "ours, vLLM's kernels": {"VA_ADAPTERS": "cpu", "VA_CAPABILITY": empty},
            "ours, our operators": {"VA_ADAPTERS": "cpu"},
        }
        seen: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
        for _ in range(args.rounds):
            for mode, variables in modes.items():
                seen[mode].append(measure(args.model, args.tokens, args.batches, variables))
    for mode, runs in seen.items():
        cells = []
        for key in runs[0]:
            values = [run[key] for run in runs]
            what = "start" if key == "start" else f"batch {key}"
            unit = "s" if key == "start" else "tok/s"
            middle = statistics.median(values)
            cells.append(f"{what} {middle:.1f} [{min(values):.1f}, {max(values):.1f}] {unit}")
        print(f"{mode}: {'; '.join(cells)}")


if __name__ == "__main__":
    main()
