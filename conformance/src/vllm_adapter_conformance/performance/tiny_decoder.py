"""The load's decoder on the device, of nothing but an adapter's bindings. Imports torch.

Each worker has its own bindings, weights and cache: a plan belongs to one batch at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.kv_cache import BlockSize, BlockTable, PagedKVCache
from vllm_adapter.engine.ops.step import Step
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.models.decoder_shape import KV_HEADS, DecoderShape

LAYERS: Final = 2
EPS: Final = 1e-6
CALLS_A_LAYER: Final = 10
"""Operators: two norms, four linears, rotation, write, attention, gate."""


class TinyDecoder:
    """Two layers over a paged cache of their own."""

    def __init__(
        self,
        bench: Bench,
        shape: DecoderShape,
        weights: Mapping[str, torch.Tensor],
        *,
        blocks: int,
    ) -> None:
        self.shape = shape
        dtype: torch.dtype = getattr(torch, shape.dtype)
        size = BlockSize(LAYERS, KV_HEADS, shape.head_size, dtype.itemsize, shape.block_size)
        self.cache = PagedKVCache(
            bench.runtime,
            bench.opened.record.index,
            size,
            dtype,
            blocks=blocks,
            max_blocks=blocks,
        )
        facts = dict(shape.needs())
        self._bound = {op: bench.bind(op, facts[op], self.cache) for op in facts if op != "linear"}
        self._weights: dict[str, Any] = {}
        self._linears: dict[str, Any] = {}
        for name, weight in weights.items():
            there = bench.to_device(weight)
            if weight.dim() == 2 and name != "table":
                out, width = weight.shape
                linear = bench.bind("linear", shape.linear(width, out), self.cache)
                there = linear.prepare_weights(there)
                self._linears[name] = linear.run, out
            self._weights[name] = there

    def step(
        self, x: torch.Tensor, sequences: Sequence[BlockTable], tokens: Sequence[int]
    ) -> tuple[torch.Tensor, Step]:
        """One forward pass of new tokens, packed.

        x: [sum of tokens, hidden] -> hidden states plus residual, as x; and the step.
        """
        step = self.cache.advance(sequences, tokens)
        self._bound["paged_attention"].plan(step)
        return self._forward(x, step), step

    def close(self) -> None:
        """Gives the cache's memory back."""
        self.cache.close()

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        run, out = self._linears[name]
        result: torch.Tensor = run(x, self._weights[name], None, out)
        return result

    def _forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        run = {op: binding.run for op, binding in self._bound.items()}
        handle = self._bound["paged_attention"].handle
        size, heads = self.shape.head_size, self.shape.heads
        residual = x
        for layer, cache in enumerate(self.cache.layers):
            weight = self._weights[f"{layer}.norm"]
            if layer:
                normed, residual = run["fused_add_rms_norm"](x, residual, weight, EPS)
            else:
                normed = run["rms_norm"](x, weight, EPS)
            fused = self._linear(f"{layer}.qkv", normed).view(-1, heads + 2 * KV_HEADS, size)
            query, key, value = torch.split(fused, [heads, KV_HEADS, KV_HEADS], dim=1)
            run["rotary_embedding"](step.positions, query, key, self._weights["table"], False)
            run["reshape_and_cache"](key, value, *cache, step.slot_mapping)
            attended = run["paged_attention"](
                query,
                *cache,
                step.block_table,
                step.seq_lens,
                step.query_start_loc,
                size**-0.5,
                0,
                0.0,
                handle,
            )
            o = self._linear(f"{layer}.o", attended.flatten(1))
            x, residual = run["fused_add_rms_norm"](
                o, residual, self._weights[f"{layer}.norm2"], EPS
            )
            gated = run["silu_and_mul"](self._linear(f"{layer}.gate_up", x))
            x = self._linear(f"{layer}.down", gated)
        return x + residual


def run_script(
    decoder: TinyDecoder,
    lengths: Sequence[int],
    prompt: torch.Tensor,
    steps: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """A scripted batch through the decoder's cache, whose blocks it gives back.

    prompt: [sum of lengths, hidden], steps: [sequences, hidden] each, all on the device -> the
    results of the prompt and of each step, on the device.
    """
    sequences = [decoder.cache.new_sequence() for _ in lengths]
    try:
        found = [decoder.step(prompt, sequences, lengths)[0]]
        found += [decoder.step(x, sequences, [1] * len(sequences))[0] for x in steps]
        return found
    finally:
        decoder.cache.release(sequences)
