"""Real vLLM in-process with one operator of an adapter at a time: its share of plain vLLM's speed.

    python benchmarks/vllm_operators.py MODEL --dtype bfloat16

Plain vLLM in one process, and in another one engine after the other on our platform, each with a
descriptor of these operators alone; both take turns `--rounds` times. The first engine of ours has
no operator at all: what the layer costs by itself. One thread of torch's; counted is CPU time
while it decodes, so that other work on the machine does not count. Printed: a line an operator,
with its median share of the speed of that first engine, over rounds and batches, and its range (of
the first engine, its share of plain vLLM's): what a descriptor says as `vllm.relative_speed`.
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

GROUPS: dict[str, tuple[str, ...]] = {
    "none": (),
    "embedding": ("embedding",),
    "linear": ("linear",),
    "rms_norm, fused_add_rms_norm": ("rms_norm", "fused_add_rms_norm"),
    "silu_and_mul": ("silu_and_mul",),
    "rotary_embedding": ("rotary_embedding",),
    "paged_attention, reshape_and_cache": ("paged_attention", "reshape_and_cache"),
}
CHILD = """
import gc, json, os, sys, time
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
model, dtype, tokens, batches = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
files = json.loads(sys.argv[5])
options = SamplingParams(
    temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False
)
prompts = [{"prompt_token_ids": [7 + i, 11, 13, 17]} for i in range(max(batches))]
for name, file in files:
    if file:
        from vllm_adapter.broker import plugin
        from vllm_adapter.engine import registries

        registries.reset()
        os.environ["VA_CAPABILITY"] = file
        plugin.register()
    llm = LLM(
        model, dtype=dtype, enforce_eager=True, max_model_len=512, skip_tokenizer_init=True
    )
    llm.generate(prompts[:1], options, use_tqdm=False)
    spent = {}
    for batch in batches:
        begun = time.process_time()
        llm.generate(prompts[:batch], options, use_tqdm=False)
        spent[batch] = time.process_time() - begun
    print("RESULT" + json.dumps([name, spent]), flush=True)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
"""


def measure(
    args: argparse.Namespace, files: list[tuple[str, str]], variables: dict[str, str]
) -> dict[str, dict[str, float]]:
    """CPU seconds by engine and batch, of one process; leaves with its last lines if it fails."""
    small = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    words = [args.model, args.dtype, str(args.tokens), json.dumps(args.batches)]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *words, json.dumps(files)],
        env=os.environ | small | variables,
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if done.returncode or len(lines) != len(files):
        sys.exit("\n".join(done.stderr.splitlines()[-15:]))
    found: dict[str, dict[str, float]] = dict(
        json.loads(line.removeprefix("RESULT")) for line in lines
    )
    return found


def descriptor(folder: Path, adapter: str, operators: tuple[str, ...]) -> str:
    """A file with the adapter's descriptor, of these operators alone and nothing measured."""
    from vllm_adapter.engine.device import open_device

    raw = dict(open_device(adapter).capability.raw)
    raw["operators"] = {op: raw["operators"][op] for op in operators}
    raw["vllm"] = {**raw.get("vllm", {}), "relative_speed": None}
    file = folder / f"{len(list(folder.iterdir()))}.json"
    file.write_text(json.dumps(raw))
    return str(file)


def main() -> None:
    """Runs all modes in turn, and prints a line each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--adapter", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in ("plain", *GROUPS)}
    with tempfile.TemporaryDirectory() as place:
        files = [
            (name, descriptor(Path(place), args.adapter, operators))
            for name, operators in GROUPS.items()
        ]
        # The first to be opened has them all, so that every class of vLLM's is replaced.
        whole = descriptor(Path(place), args.adapter, sum(GROUPS.values(), ()))
        ours = {"VA_ADAPTERS": args.adapter, "VA_CAPABILITY": whole}
        for number in range(args.rounds):
            both = measure(args, [("plain", "")], {"VLLM_PLUGINS": ""})
            both |= measure(args, files, ours)
            for mode, spent in both.items():
                seen[mode].append(spent)
                print(f"round {number + 1}: {mode}: {spent}", file=sys.stderr)
    for mode in GROUPS:
        base = "none" if GROUPS[mode] else "plain"
        shares = [
            theirs[batch] / ours[batch]
            for theirs, ours in zip(seen[base], seen[mode], strict=True)
            for batch in theirs
        ]
        middle = statistics.median(shares)
        print(f"{args.dtype}: {mode}: {middle:.2f} [{min(shares):.2f}, {max(shares):.2f}]")


if __name__ == "__main__":
    main()
