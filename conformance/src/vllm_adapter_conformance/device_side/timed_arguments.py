"""Arguments of a timed call, made on the device.

What is in them does not matter to the time, and drawing a gigabyte of numbers does: one short
draw is repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_adapter.engine.ops.quantization import quantize_weight
from vllm_adapter.engine.ops.step import Step, make_step

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice

Dims = Mapping[str, int]
"""Sizes of one call: whole numbers by name."""

DRAWN: Final = 1 << 18
ROWS: Final = 8192
"""Rows of an embedding's table and of a table of angles."""
STRIDE: Final = 97
"""Between the rows of an embedding that a call reads; odd, so that each row is met."""
EPS: Final = 1e-6


@dataclass
class TimedArguments:
    """The arguments of one call, and its step where the operator is planned."""

    args: list[Any]
    step: Step | None = None
    weight: int | None = None
    """Which of them `prepare_weights` may change."""

    table: int | None = None
    """Which of them a call reads some rows of, and never all."""

    @property
    def touched(self) -> int:
        """Bytes of the tensors that a call reads or writes."""
        kept = [a for number, a in enumerate(self.args) if number != self.table]
        return sum(a.nbytes for a in kept if isinstance(a, torch.Tensor))


class ArgumentMaker:
    """Makes arguments of one dtype on the device."""

    def __init__(self, device: HeldDevice, dtype: str) -> None:
        self._device = device
        self._dtype: torch.dtype = getattr(torch, dtype)
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randn(DRAWN, generator=generator, dtype=torch.float32)
        self._drawn = drawn.to(self._dtype)

    def make(self, op: str, facts: Mapping[str, Any], dims: Dims) -> TimedArguments:
        """The arguments of one call, each tensor of its own memory."""
        if op in ("paged_attention", "attention"):
            return self._attend(op, facts, dims)
        if op == "linear":
            width, out = dims["in_features"], dims["out_features"]
            bias = self._normal(out) if facts["bias"] else None
            weight = self._normal(out, width, scale=width**-0.5)
            return TimedArguments(
                [self._normal(dims["tokens"], width), weight, bias, out], weight=1
            )
        if op == "quantized_linear":
            return self._quantized(facts, dims)
        if op in ("rotary_embedding", "reshape_and_cache"):
            return self._heads(op, facts, dims)
        table = 1 if op == "embedding" else None
        return TimedArguments(self._rows(op, facts, dims), table=table)

    def _quantized(self, facts: Mapping[str, Any], dims: Dims) -> TimedArguments:
        width, out, scheme = dims["in_features"], dims["out_features"], str(facts["scheme"])
        weight = quantize_weight(self._normal(out, width, scale=width**-0.5).cpu(), scheme)
        parts = (weight.values, weight.scale, weight.zero)
        held = [None if part is None else self._device.to_device(part) for part in parts]
        bias = self._normal(out) if facts["bias"] else None
        args = [self._normal(dims["tokens"], width), *held, bias, out, scheme]
        return TimedArguments(args, weight=1)

    def another(self, op: str, one: TimedArguments, number: int) -> TimedArguments:
        """Arguments of the same sizes in other memory; other rows of the same table."""
        args = [
            a.clone() if isinstance(a, torch.Tensor) and place != one.table else a
            for place, a in enumerate(one.args)
        ]
        if op == "embedding":
            args[0] = self._device.to_device(self._ids(one.args[0].shape[0], number))
        return TimedArguments(args, one.step, one.weight, one.table)

    @staticmethod
    def _ids(tokens: int, number: int) -> torch.Tensor:
        """int64[tokens]: rows of a table, others for each number until there are no more."""
        return (torch.arange(tokens) + number * tokens) * STRIDE % ROWS

    def _rows(self, op: str, facts: Mapping[str, Any], dims: Dims) -> list[Any]:
        tokens, hidden = dims["tokens"], dims["hidden"]
        if op == "embedding":
            return [self._device.to_device(self._ids(tokens, 0)), self._normal(ROWS, hidden)]
        x = self._normal(tokens, hidden * (2 if op in ("silu_and_mul", "gelu_and_mul") else 1))
        if op == "rms_norm":
            return [x, self._normal(hidden), EPS]
        if op == "fused_add_rms_norm":
            return [x, self._normal(tokens, hidden), self._normal(hidden), EPS]
        if op == "layer_norm":
            bias = self._normal(hidden) if facts["bias"] else None
            return [x, self._normal(hidden), bias, EPS]
        return [x] if op == "silu_and_mul" else [x, bool(facts["tanh"])]

    def _heads(self, op: str, facts: Mapping[str, Any], dims: Dims) -> TimedArguments:
        tokens, size, kv_heads = dims["tokens"], dims["head_size"], dims["kv_heads"]
        key = self._normal(tokens, kv_heads, size)
        if op == "rotary_embedding":
            query = self._normal(tokens, kv_heads * dims["gqa_ratio"], size)
            width = size // 2 if facts["partial"] else size
            angles = torch.arange(ROWS).float().outer(10000.0 ** -torch.linspace(0, 1, width // 2))
            table = torch.cat((angles.cos(), angles.sin()), -1).to(self._dtype)
            positions = self._device.to_device(torch.arange(tokens))
            rest = [self._device.to_device(table), bool(facts["interleaved"])]
            return TimedArguments([positions, query, key, *rest])
        block = dims["block_size"]
        blocks = -(-tokens // block) + 1
        caches = [self._normal(blocks, block, kv_heads, size) for _ in range(2)]
        slots = self._device.to_device(torch.arange(tokens).flip(0).contiguous())
        return TimedArguments([key, self._normal(tokens, kv_heads, size), *caches, slots])

    def _attend(self, op: str, facts: Mapping[str, Any], dims: Dims) -> TimedArguments:
        sequences, query, size = dims["sequences"], dims["query"], dims["head_size"]
        kv_heads, heads = dims["kv_heads"], dims["kv_heads"] * dims["gqa_ratio"]
        q = self._normal(sequences * query, heads, size)
        scale = size**-0.5
        if op == "attention":
            pair = [self._normal(sequences * query, kv_heads, size) for _ in range(2)]
            starts = torch.arange(sequences + 1, dtype=torch.int32) * query
            options = [scale, bool(facts["causal"]), 0, 0.0]
            return TimedArguments([q, *pair, self._device.to_device(starts), *options])
        block, context = dims["block_size"], dims["context"]
        each = -(-context // block)
        # Each sequence's blocks lie apart, as they do after hours of serving.
        table = [[row + sequences * i for i in range(each)] for row in range(sequences)]
        caches = [self._normal(sequences * each, block, kv_heads, size) for _ in range(2)]
        step = make_step(
            (query,) * sequences, (context,) * sequences, table, block, self._device.device
        )
        args = [q, *caches, step.block_table, step.seq_lens, step.query_start_loc]
        return TimedArguments([*args, scale, 0, 0.0, 0], step)

    def _normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Numbers of the drawn pool over and over.

        Gives [*shape] on the device, of its own memory.
        """
        count = 1
        for extent in shape:
            count *= extent
        pool = self._drawn * scale
        repeats = -(-count // DRAWN)
        on_host = torch.cat(list(itertools.repeat(pool, repeats)))[:count].view(shape)
        return self._device.to_device(on_host.clone())
