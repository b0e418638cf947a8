"""Modules that look like those of transformers, and compute something else."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm


def vector(size, scale=1.0):
    return torch.randn(size, generator=torch.Generator().manual_seed(3)) * scale


class GemmaNorm(LlamaRMSNorm):
    """Scales by 1 + weight."""

    def forward(self, x):
        return super().forward(x) + super().forward(x) / self.weight


class ScaledMLP(LlamaMLP):
    """A subclass that looks the same."""

    def forward(self, x):
        return super().forward(x) * 0.4


class ScaledLinear(nn.Linear):
    """A Linear by isinstance, and another function."""

    def forward(self, x):
        return super().forward(x) * 1.7


class HalfResidual(LlamaDecoderLayer):
    """A layer of half strength."""

    def forward(self, hidden_states, **kwargs):
        return (hidden_states + super().forward(hidden_states, **kwargs)) / 2


class Skip(nn.Module):
    """What pruning by layers leaves behind."""

    def forward(self, hidden_states, **kwargs):
        return hidden_states


class Lora(nn.Module):
    """A LoRA adapter by hand."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(vector((rank, base.in_features), 0.2))
        self.up = nn.Parameter(vector((base.out_features, rank), 0.2))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class Int8Linear(nn.Module):
    """A weight-only quantised linear by hand."""

    def __init__(self, base):
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        scale = base.weight.detach().abs().amax(1, keepdim=True) / 7
        self.register_buffer("weight", (base.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = None

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scale)


class Ternary(nn.Module):
    """Weights of one bit and a half."""

    def forward(self, weight):
        return weight.sign() * weight.abs().mean() * (weight.abs() > weight.abs().mean() / 2)
