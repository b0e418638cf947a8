"""A decoder made of nothing but an adapter's own bindings, eager and compiled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from .tracing import Graphs, compiled

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.ops.bind import Binding
    from vllm_adapter.engine.ops.step import Step

EPS: Final = 1e-6
Caches = Sequence[tuple[torch.Tensor, torch.Tensor]]
Given = Mapping[str, Any]


class _Linear(torch.nn.Module):
    """One projection without bias, its weight prepared as the winner wants it."""

    def __init__(self, device: HeldDevice, facts: Given, weight: torch.Tensor) -> None:
        super().__init__()
        binding = device.bind("linear", facts)
        self.weight = binding.prepare_weights(device.to_device(weight))
        self.run, self.out = binding.run, weight.shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in] -> [tokens, out]."""
        result: torch.Tensor = self.run(x, self.weight, None, self.out)
        return result


class _Layer(torch.nn.Module):
    def __init__(self, device: HeldDevice, shape: Given, weights: Given, attend: Binding) -> None:
        super().__init__()
        self.heads, self.size = shape["heads"], shape["head_size"]
        self.qkv, self.o, self.gate_up, self.down = (
            _Linear(device, shape["linear"][name], weights[name])
            for name in ("qkv", "o", "gate_up", "down")
        )
        self.weights = [device.to_device(weight) for weight in weights["norms"]]
        self.norm, self.add_norm, self.rotate, self.write, self.silu = (
            device.bind(op, shape["needs"][op]).run
            for op in (
                *("rms_norm", "fused_add_rms_norm", "rotary_embedding"),
                *("reshape_and_cache", "silu_and_mul"),
            )
        )
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
        merged = self.qkv(normed)
        fused = merged.view(-1, merged.shape[-1] // self.size, self.size)
        others = (fused.shape[1] - self.heads) // 2
        query, key, value = fused.split([self.heads, others, others], dim=1)
        self.rotate(step.positions, query, key, table, False)
        self.write(key, value, *cache, step.slot_mapping)
        attended = self.attend(
            query,
            *cache,
            step.block_table,
            step.seq_lens,
            step.query_start_loc,
            self.size**-0.5,
            0,
            0.0,
            self.handle,
        )
        x, residual = self.add_norm(self.o(attended.flatten(1)), residual, self.weights[1], EPS)
        return self.down(self.silu(self.gate_up(x))), residual


class _Decoder(torch.nn.Module):
    """hidden states[T, hidden] -> hidden states and residual; all layers share one plan."""

    def __init__(self, device: HeldDevice, shape: Given) -> None:
        super().__init__()
        attend = device.bind("paged_attention", shape["needs"]["paged_attention"])
        self.plan = attend.plan
        self.layers = torch.nn.ModuleList(
            _Layer(device, shape, weights, attend) for weights in shape["layers"]
        )
        self.table = device.to_device(shape["table"])

    def forward(self, x: torch.Tensor, caches: Caches, step: Step) -> Any:
        """x: [tokens, hidden] -> (x, residual), each [tokens, hidden].

        caches: for each layer two of [blocks, block_size, kv_heads, head_size].
        """
        residual = None
        for layer, cache in zip(self.layers, caches, strict=True):
            x, residual = layer(x, residual, cache, self.table, step)
        return x, residual


def phases(
    device: HeldDevice, shape: Given, cache: torch.Tensor, steps: Sequence[Sequence[Given]]
) -> list[dict[str, Any]]:
    """Each step of each phase: what the compiled and the eager decoder gave and wrote.

    A phase is a list of steps with `x` [tokens, hidden], `step`, and whether it is `traced`;
    `cache` is what caches begin with. `graphs` counts those of the phase so far.
    """
    model = _Decoder(device, shape)
    eager, traced = (
        [(device.to_device(cache), device.to_device(cache)) for _ in model.layers]
        for _ in range(2)
    )
    found = []
    for phase in steps:
        is_traced = phase[0]["traced"]
        run, graphs = compiled(model) if is_traced else (model, Graphs())
        for given in phase:
            step, x = device.step(given["step"]), device.to_device(given["x"])
            model.plan(step)
            with torch.no_grad():
                got, want = run(x, traced, step), model(x, eager, step)
            written = [[*itertools.chain(*caches)] for caches in (traced, eager)]
            # The next step writes into the same caches.
            found.append(
                {
                    "got": [tensor.cpu().clone() for tensor in (*got, *written[0])],
                    "want": [tensor.cpu().clone() for tensor in (*want, *written[1])],
                    "graphs": len(graphs.modules),
                }
            )
    return found
