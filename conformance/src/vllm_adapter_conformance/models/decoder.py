"""A decoder of two layers, made of nothing but an adapter's own bindings. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from vllm_adapter.engine.ops.bind import Binding
from vllm_adapter.engine.ops.step import Step
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.models.decoder_shape import DecoderShape
from vllm_adapter_conformance.ops.draw import RandomTensors
from vllm_adapter_conformance.ops.runs import bind_declared

LAYERS: Final = 2
POSITIONS: Final = 64
EPS: Final = 1e-6

Caches = Sequence[tuple[torch.Tensor, torch.Tensor]]


class _Linear(torch.nn.Module):
    """One projection without bias, its weight prepared as the winner wants it."""

    def __init__(
        self, bench: Bench, shape: DecoderShape, draw: RandomTensors, width: int, out: int
    ) -> None:
        super().__init__()
        binding = bind_declared(bench, "linear", shape.linear(width, out))
        weight = draw.normal(out, width, dtype=getattr(torch, shape.dtype), scale=width**-0.5)
        self.weight = binding.prepare_weights(bench.to_device(weight))
        self.run, self.out = binding.run, out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in] -> [tokens, out]."""
        result: torch.Tensor = self.run(x, self.weight, None, self.out)
        return result


class _Layer(torch.nn.Module):
    def __init__(
        self, bench: Bench, shape: DecoderShape, draw: RandomTensors, attend: Binding
    ) -> None:
        super().__init__()
        self.shape = shape
        heads, hidden = shape.heads, shape.hidden
        self.qkv = _Linear(bench, shape, draw, hidden, shape.qkv)
        self.o = _Linear(bench, shape, draw, heads * shape.head_size, hidden)
        self.gate_up = _Linear(bench, shape, draw, hidden, 2 * hidden)
        self.down = _Linear(bench, shape, draw, hidden, hidden)
        self.weights = [
            bench.to_device(draw.normal(hidden, dtype=getattr(torch, shape.dtype)))
            for _ in range(2)
        ]
        needs = dict(shape.needs())
        self.norm = bind_declared(bench, "rms_norm", needs["rms_norm"]).run
        self.add_norm = bind_declared(bench, "fused_add_rms_norm", needs["fused_add_rms_norm"]).run
        self.rotate = bind_declared(bench, "rotary_embedding", needs["rotary_embedding"]).run
        self.write = bind_declared(bench, "reshape_and_cache", needs["reshape_and_cache"]).run
        self.silu = bind_declared(bench, "silu_and_mul", needs["silu_and_mul"]).run
        self.attend, self.handle = attend.run, attend.handle

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cache: tuple[torch.Tensor, torch.Tensor],
        table: torch.Tensor,
        step: Step,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual: [tokens, hidden] -> the same two after the layer.

        cache: two of [blocks, block_size, kv_heads, head_size]; table: [positions, head_size].
        """
        if residual is None:
            normed, residual = self.norm(x, self.weights[0], EPS), x
        else:
            normed, residual = self.add_norm(x, residual, self.weights[0], EPS)
        size, heads = self.shape.head_size, self.shape.heads
        fused = self.qkv(normed).view(-1, self.shape.qkv // size, size)
        query, key, value = fused.split([heads, *[(fused.shape[1] - heads) // 2] * 2], dim=1)
        self.rotate(step.positions, query, key, table, False)
        self.write(key, value, *cache, step.slot_mapping)
        attended = self.attend(
            query,
            *cache,
            step.block_table,
            step.seq_lens,
            step.query_start_loc,
            size**-0.5,
            0,
            0.0,
            self.handle,
        )
        x, residual = self.add_norm(self.o(attended.flatten(1)), residual, self.weights[1], EPS)
        return self.down(self.silu(self.gate_up(x))), residual


class Decoder(torch.nn.Module):
    """hidden states[T, hidden] -> hidden states and residual; both layers share one plan."""

    def __init__(self, bench: Bench, shape: DecoderShape) -> None:
        super().__init__()
        draw = RandomTensors(bench.target.seed, "decoder")
        attend = bind_declared(bench, "paged_attention", dict(shape.needs())["paged_attention"])
        self.plan = attend.plan
        self.layers = torch.nn.ModuleList(
            _Layer(bench, shape, draw, attend) for _ in range(LAYERS)
        )
        half = torch.linspace(0, 1, shape.head_size // 2, dtype=torch.float64)
        angles = torch.arange(POSITIONS).double().outer(10000.0**-half)
        table = torch.cat((angles.cos(), angles.sin()), -1)
        self.table = bench.to_device(table.to(getattr(torch, shape.dtype)))

    def forward(self, x: torch.Tensor, caches: Caches, step: Step) -> Any:
        """x: [tokens, hidden] -> (x, residual), each [tokens, hidden].

        caches: for each layer two of [blocks, block_size, kv_heads, head_size].
        """
        residual = None
        for layer, cache in zip(self.layers, caches, strict=True):
            x, residual = layer(x, residual, cache, self.table, step)
        return x, residual
