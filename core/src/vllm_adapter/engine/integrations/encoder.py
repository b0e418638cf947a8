"""An encoder layer of portable operators: attention both ways, norms after each sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vllm_adapter.engine.integrations.layers import Linear, frozen
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import Facts, OpCase, dtype_name
from vllm_adapter.settings import Settings

Weights = tuple[torch.Tensor, torch.Tensor | None]
"""A weight and its bias, if it has one."""

Norm = tuple[Weights, float]
"""What a layer norm multiplies by and adds, and its eps."""


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """What a BERT-like layer is, apart from its weights."""

    intermediate: int
    heads: int
    head_size: int
    scale: float
    """Of the scores; head_size^-0.5 in most models."""
    tanh: bool
    """gelu by its approximation with tanh."""


class LayerNorm(torch.nn.Module):
    """layer_norm over the last dimension."""

    def __init__(self, norm: Weights, eps: float, settings: Settings | None = None) -> None:
        super().__init__()
        weight, bias = norm
        facts: Facts = {
            "dtype": dtype_name(weight),
            "hidden": weight.shape[0],
            "bias": bias is not None,
        }
        binding = bind(OpCase.of("layer_norm", weight.device, facts), settings)
        self.bindings = (binding,)
        self._run, self.eps = binding.run, eps
        self.weight = frozen(weight)
        self.bias = None if bias is None else frozen(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., hidden]."""
        result: torch.Tensor = self._run(x, self.weight, self.bias, self.eps)
        return result


class Embedding(torch.nn.Module):
    """Rows of several tables of one width, added up."""

    def __init__(self, tables: Sequence[torch.Tensor], settings: Settings | None = None) -> None:
        super().__init__()
        facts: Facts = {"dtype": dtype_name(tables[0]), "hidden": tables[0].shape[1]}
        binding = bind(OpCase.of("embedding", tables[0].device, facts), settings)
        self.bindings = (binding,)
        self._run = binding.run
        self.tables = torch.nn.ParameterList(frozen(table) for table in tables)

    def forward(self, *ids: torch.Tensor | None) -> list[torch.Tensor]:
        """Numbers for each table -> its rows [..., hidden]; None leaves a table out."""
        return [
            self._run(numbers, table)
            for numbers, table in zip(ids, self.tables, strict=True)
            if numbers is not None
        ]


class EncoderLayer(torch.nn.Module):
    """Attention and a feed-forward part over packed tokens [T, hidden], each normed after it."""

    def __init__(
        self,
        shape: EncoderShape,
        *,
        qkv: Weights,
        out: Weights,
        attention_norm: Norm,
        up: Weights,
        down: Weights,
        output_norm: Norm,
        settings: Settings | None = None,
    ) -> None:
        """`qkv` is merged along the outputs.

        Raises:
            UnsupportedCase: an operator has no implementation for this shape and dtype.
        """
        super().__init__()
        self.shape = shape
        self.qkv, self.out = Linear(*qkv, settings), Linear(*out, settings)
        self.up, self.down = Linear(*up, settings), Linear(*down, settings)
        self.attention_norm = LayerNorm(*attention_norm, settings)
        self.output_norm = LayerNorm(*output_norm, settings)
        name, device = dtype_name(qkv[0]), qkv[0].device
        attend: Facts = {
            "dtype": name,
            "head_size": shape.head_size,
            "gqa_ratio": 1,
            "causal": False,
            "window": 0,
            "soft_cap": 0.0,
        }
        active: Facts = {"dtype": name, "hidden": shape.intermediate, "tanh": shape.tanh}
        attention = bind(OpCase.of("attention", device, attend), settings)
        gelu = bind(OpCase.of("gelu", device, active), settings)
        self.bindings = (attention, gelu)
        self._attend, self._gelu = attention.run, gelu.run

    def forward(self, x: torch.Tensor, query_start_loc: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; each sequence sees itself alone, in both directions."""
        shape = self.shape
        fused = self.qkv(x).view(x.shape[0], 3, shape.heads, shape.head_size)
        attended = self._attend(*fused.unbind(1), query_start_loc, shape.scale, False, 0, 0.0)
        x = self.attention_norm(self.out(attended.flatten(1)) + x)
        result: torch.Tensor = self.output_norm(self.down(self._gelu(self.up(x), shape.tanh)) + x)
        return result
