"""The load's decoder on the device, of nothing but an adapter's bindings.

Each worker has its own bindings, weights and cache: a plan belongs to one batch at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_adapter.engine.kv_cache import BlockSize, BlockTable, PagedKVCache
from vllm_adapter.engine.ops.step import Step

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

LAYERS: Final = 2
EPS: Final = 1e-6
Given = Mapping[str, Any]
CALLS_A_LAYER: Final = 10
"""Operators: two norms, four linears, rotation, write, attention, gate."""


class TinyDecoder:
    """Two layers over a paged cache of their own.

    `shape` has the `dtype`, `head_size`, `block_size`, `heads` and `kv_heads`, and in `needs` the
    facts of each operator but linear.
    """

    def __init__(
        self,
        device: HeldDevice,
        shape: Given,
        weights: Mapping[str, torch.Tensor],
        *,
        blocks: int,
    ) -> None:
        self.shape = shape
        dtype: torch.dtype = getattr(torch, shape["dtype"])
        size = BlockSize(
            *(LAYERS, shape["kv_heads"], shape["head_size"]),
            *(dtype.itemsize, shape["block_size"]),
        )
        self.cache = PagedKVCache(
            device.runtime,
            device.index,
            size,
            dtype,
            blocks=blocks,
            max_blocks=blocks,
        )
        self._bound = {
            op: device.bind(op, facts, self.cache) for op, facts in shape["needs"].items()
        }
        self._weights: dict[str, Any] = {}
        self._linears: dict[str, Any] = {}
        for name, weight in weights.items():
            there = device.to_device(weight)
            if weight.dim() == 2 and name != "table":
                out, width = weight.shape
                sizes = {"in_features": width, "out_features": out, "bias": False}
                facts = {"dtype": shape["dtype"], **sizes}
                linear = device.bind("linear", facts, self.cache)
                there = linear.prepare_weights(there)
                self._linears[name] = linear.run, out
            self._weights[name] = there

    @property
    def hidden(self) -> int:
        """Width of the hidden states."""
        return int(self.shape["heads"] * self.shape["head_size"])

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
        size, heads = self.shape["head_size"], self.shape["heads"]
        kv_heads = self.shape["kv_heads"]
        residual = x
        for layer, cache in enumerate(self.cache.layers):
            weight = self._weights[f"{layer}.norm"]
            if layer:
                normed, residual = run["fused_add_rms_norm"](x, residual, weight, EPS)
            else:
                normed = run["rms_norm"](x, weight, EPS)
            fused = self._linear(f"{layer}.qkv", normed).view(-1, heads + 2 * kv_heads, size)
            query, key, value = torch.split(fused, [heads, kv_heads, kv_heads], dim=1)
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
