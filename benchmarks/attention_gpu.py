"""Paged attention of an adapter on its GPU: decode, prefill and mixed batches, by graph replays.

    python benchmarks/attention_gpu.py [--adapter cuda] [--json FILE]

Cases, page size and heads are fixed here; every case is held against float32 on its first and last
sequence. Calls rotate over pools of keys and values, so that the device's cache cannot serve them.
Times are medians of replays of a graph of several calls; the copy rate is of the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from vllm_adapter import Step, make_step, open_device
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import OpCase

PAGE = 16
MODELS = {"Qwen3-0.6B": (16, 8, 128), "Llama-3-8B": (32, 8, 128), "Llama-3-70B, TP 8": (8, 1, 128)}
"""Query heads, KV heads, head size."""
POOL_BYTES = 38 << 30
ROTATED_BYTES = 6 << 28


def cases() -> Iterator[tuple[str, list[int], list[int]]]:
    """Name, new tokens and contexts of each sequence."""
    for batch in (1, 16, 64, 256):
        for context in (1024, 4096, 16384):
            yield f"{batch} x {context}", [1] * batch, [context] * batch
    for batch in (16, 64, 256):
        draw = random.Random(batch)
        contexts = [int(2 ** draw.uniform(7, 14)) for _ in range(batch)]
        yield f"{batch} of 128 to 16k", [1] * batch, contexts
    yield "prefill 1 x 4096", [4096], [4096]
    yield "prefill 8 x 512", [512] * 8, [512] * 8
    yield "prefill 2048 + 63 decodes at 4096", [2048] + [1] * 63, [2048] + [4096] * 63
    yield "chunk of 512 at 8192 + 63 decodes", [512] + [1] * 63, [8192] + [4096] * 63


@dataclass
class Case:
    """Tensors of one case: `sets` pools that share one block table."""

    step: Step
    query: torch.Tensor
    """[sets, T, H, D]"""
    caches: torch.Tensor
    """[sets, 2, blocks, PAGE, KH, D]"""

    @property
    def sets(self) -> int:
        """Pools that calls rotate over."""
        return self.query.shape[0]

    def arguments(self, number: int) -> tuple[object, ...]:
        """Of a call over one pool, but for the handle."""
        step = self.step
        keys, values = self.caches[number]
        shared = step.block_table, step.seq_lens, step.query_start_loc
        return (self.query[number], keys, values, *shared, self.query.shape[-1] ** -0.5, 0, 0.0)

    def error(self, found: torch.Tensor, row: int) -> float:
        """Relative error of a sequence's last queries (64 at most), against float32."""
        step = self.step
        context, length = step.context_lens[row], step.query_lens[row]
        blocks = step.block_table[row, : -(-context // PAGE)].long()
        keys, values = (cache[blocks].flatten(0, 1)[:context].float() for cache in self.caches[0])
        stop = sum(step.query_lens[: row + 1])
        taken = min(length, 64)
        query = self.query[0, stop - taken : stop].float()
        query = query.view(taken, keys.shape[1], -1, query.shape[-1])
        scores = torch.einsum("qhgd,khd->hgqk", query, keys) * query.shape[-1] ** -0.5
        place = torch.arange(context, device=query.device)
        hidden = place[None] > place[context - taken :, None]
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        want = torch.einsum("hgqk,khd->qhgd", weights, values).flatten(1, 2)
        return float((found[stop - taken : stop].float() - want).norm() / want.norm())


def make_case(pool: torch.Tensor, heads: tuple[int, int, int], q: list[int], c: list[int]) -> Case:
    """A case in views of the pool."""
    query_heads, kv_heads, size = heads
    blocks = [-(-n // PAGE) for n in c]
    total = sum(blocks)
    one = 2 * total * PAGE * kv_heads * size
    sets = max(2, min(32, ROTATED_BYTES // (2 * one)))
    caches = pool[: sets * one].view(sets, 2, total, PAGE, kv_heads, size)
    order = torch.randperm(total).tolist()
    table, start = [], 0
    for count in blocks:
        table.append(order[start : start + count])
        start += count
    step = make_step(tuple(q), tuple(c), table, PAGE, pool.device)
    query = torch.randn(sets, sum(q), query_heads, size, dtype=pool.dtype, device=pool.device)
    return Case(step, query, caches)


def graph_us(calls: list[Callable[[], object]], replays: int = 5) -> float:
    """Microseconds of one call, by replays of a graph in which all are."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    count = max(8, len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(count):
            calls[number % len(calls)]()
    graph.replay()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / count)
    return statistics.median(times)


def copy_gb_s(pool: torch.Tensor) -> float:
    """Bytes read and written by a large copy."""
    source, target = pool[: 1 << 30], pool[1 << 30 : 2 << 30]
    return 2 * source.nbytes / graph_us([lambda: target.copy_(source)]) / 1e3


def main() -> None:
    """Prints a line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapter", default="cuda")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    opened = open_device(given.adapter)
    pool = torch.empty(POOL_BYTES // 2, dtype=torch.bfloat16, device=opened.device)
    for part in pool.split(1 << 30):
        part.normal_()
    copy = copy_gb_s(pool)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {copy:.0f} GB/s")
    rows = []
    for model, heads in MODELS.items():
        query_heads, kv_heads, size = heads
        facts = {
            "dtype": "bfloat16", "head_size": size, "block_size": PAGE,
            "gqa_ratio": query_heads // kv_heads, "window": 0, "soft_cap": 0.0, "kv_dtype": "auto",
        }  # fmt: skip
        binding = bind(OpCase.of("paged_attention", opened.device, facts))
        for name, queries, contexts in cases():
            case = make_case(pool, heads, queries, contexts)
            binding.plan(case.step)
            found = binding.run(*case.arguments(0), binding.handle)
            error = max(case.error(found, row) for row in {0, len(contexts) - 1})
            calls = [
                partial(binding.run, *case.arguments(number), binding.handle)
                for number in range(case.sets)
            ]
            us = graph_us(calls)
            bytes_read = sum(contexts) * kv_heads * size * 4
            pairs = sum(q * k - q * (q - 1) // 2 for q, k in zip(queries, contexts, strict=True))
            rows.append(
                {
                    "model": model, "case": name, "us": us, "gb_s": bytes_read / us / 1e3,
                    "of_copy": bytes_read / us / 1e3 / copy,
                    "tflop_s": 4 * query_heads * size * pairs / us / 1e6, "error": error,
                }
            )  # fmt: skip
            print(
                f"{model:18} {name:34} {us:9.1f} us {rows[-1]['gb_s']:7.0f} GB/s "
                f"{rows[-1]['of_copy']:5.2f} of copy {rows[-1]['tflop_s']:6.0f} TFLOP/s "
                f"error {error:.4f}  {', '.join(binding.providers)}",
                flush=True,
            )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"copy_gb_s": copy, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
