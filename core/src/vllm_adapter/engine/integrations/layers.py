"""A decoder layer of portable operators: bound once, at load, for one device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vllm_adapter.engine.integrations.attention import PortableAttention
from vllm_adapter.engine.kv_cache import PagedKVCache
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import Facts, OpCase, dtype_name
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.settings import Settings


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a Llama-like decoder layer is, apart from its weights."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int


Norm = tuple[torch.Tensor, float]
"""The weight of an RMS norm and its eps."""
Run = Callable[..., Any]


class Product(torch.nn.Module):
    """A linear of any form of weights."""

    def bound(self) -> Run:
        """x[..., in] -> [..., out], without the module around it."""
        raise NotImplementedError


LinearMaker = Callable[[str, torch.Tensor, torch.Tensor | None, Settings | None], Product]
"""(name, weight[out, in], bias, settings) -> the module that runs it."""


class Linear(Product):
    """x @ weight.T + bias. The weight is prepared by whoever runs it, and not trained."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, settings: Settings | None = None
    ) -> None:
        super().__init__()
        self.out_features, in_features = weight.shape
        facts: Facts = {
            "dtype": dtype_name(weight),
            "in_features": in_features,
            "out_features": self.out_features,
            "bias": bias is not None,
        }
        binding = bind(OpCase.of("linear", weight.device, facts), settings)
        self.bindings = (binding,)
        self._run = binding.run
        self.weight = frozen(binding.prepare_weights(weight))
        self.bias = None if bias is None else frozen(bias)

    def bound(self) -> Run:
        """x[..., in] -> [..., out], without the module around it."""
        run, weight, bias, out = self._run, self.weight, self.bias, self.out_features
        return lambda x: run(x, weight, bias, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        result: torch.Tensor = self._run(x, self.weight, self.bias, self.out_features)
        return result


def plain_linear(
    name: str,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    settings: Settings | None = None,
) -> Product:
    """A linear whose weight [out, in] stays as it is."""
    return Linear(weight, bias, settings)


class RMSNorm(torch.nn.Module):
    """rms_norm with a weight, over the last dimension."""

    def __init__(self, weight: torch.Tensor, eps: float, settings: Settings | None = None) -> None:
        super().__init__()
        binding = bind(OpCase.of("rms_norm", weight.device, _norm_facts(weight)), settings)
        self.bindings = (binding,)
        self._run = binding.run
        self.weight, self.eps = frozen(weight), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., hidden]."""
        result: torch.Tensor = self._run(x, self.weight, self.eps)
        return result


class AddRMSNorm(torch.nn.Module):
    """fused_add_rms_norm with a weight."""

    def __init__(self, weight: torch.Tensor, eps: float, settings: Settings | None = None) -> None:
        super().__init__()
        case = OpCase.of("fused_add_rms_norm", weight.device, _norm_facts(weight))
        binding = bind(case, settings)
        self.bindings = (binding,)
        self._run = binding.run
        self.weight, self.eps = frozen(weight), eps

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual: [tokens, hidden] -> (norm of x + residual, x + residual), both alike."""
        normed, total = self._run(x, residual, self.weight, self.eps)
        return normed, total


class DecoderLayer(torch.nn.Module):
    """Norm, attention, norm, gated MLP, over packed tokens [T, hidden]."""

    def __init__(
        self,
        shape: LayerShape,
        cache: PagedKVCache,
        *,
        input_norm: Norm,
        qkv: tuple[torch.Tensor, torch.Tensor | None],
        out: tuple[torch.Tensor, torch.Tensor | None],
        post_norm: Norm,
        gate_up: tuple[torch.Tensor, torch.Tensor | None],
        down: tuple[torch.Tensor, torch.Tensor | None],
        head_norms: tuple[Norm, Norm] | None = None,
        scale: float | None = None,
        window: int = 0,
        linear: LinearMaker = plain_linear,
        settings: Settings | None = None,
    ) -> None:
        """`qkv`, `out`, `gate_up`, `down` are (weight, bias or None); what is merged along the
        outputs is `qkv` and `gate_up`.

        `head_norms` are for each head of the queries and of the keys; `scale` is of the scores,
        head_size^-0.5 where None; `window` counts the tokens of a sliding window, 0 is off;
        `linear` makes the four products.

        Raises:
            UnsupportedCase: an operator has no implementation for this shape and dtype.
        """
        super().__init__()
        self.shape = shape
        self.input_norm = RMSNorm(*input_norm, settings)
        self.qkv = linear("qkv", *qkv, settings)
        self.attention = PortableAttention(
            shape.heads,
            cache,
            dtype=input_norm[0].dtype,
            scale=scale,
            window=window,
            settings=settings,
        )
        self.head_norms = torch.nn.ModuleList(
            RMSNorm(*norm, settings) for norm in head_norms or ()
        )
        self.out = linear("out", *out, settings)
        self.post_norm = AddRMSNorm(*post_norm, settings)
        self.gate_up = linear("gate_up", *gate_up, settings)
        self.down = linear("down", *down, settings)
        name, device = dtype_name(input_norm[0]), input_norm[0].device
        rotary: Facts = {
            "dtype": name,
            "head_size": shape.head_size,
            "interleaved": False,
            "partial": False,
        }
        gated: Facts = {"dtype": name, "hidden": shape.intermediate}
        rotate = bind(OpCase.of("rotary_embedding", device, rotary), settings)
        gate = bind(OpCase.of("silu_and_mul", device, gated), settings)
        self.bindings = (rotate, gate)
        self._rotate, self._silu_and_mul = rotate.run, gate.run

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        cos_sin_cache: torch.Tensor,
        layer_cache: tuple[torch.Tensor, torch.Tensor],
        step: Step,
    ) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; writes the new keys and values into `layer_cache`."""
        shape = self.shape
        fused = self.qkv(self.input_norm(x)).view(
            x.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_size
        )
        query, key, value = fused.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if self.head_norms:
            query_norm, key_norm = self.head_norms
            query, key = query_norm(query), key_norm(key)
        self._rotate(positions, query, key, cos_sin_cache, False)
        attended = self.attention(query, key, value, *layer_cache, step)
        normed, residual = self.post_norm(self.out(attended.flatten(1)), x)
        result: torch.Tensor = residual + self.down(self._silu_and_mul(self.gate_up(normed)))
        return result


def providers_of(module: torch.nn.Module) -> dict[str, tuple[str, ...]]:
    """Who runs each operator of a module built from these layers, by the operator's name."""
    found: dict[str, tuple[str, ...]] = {}
    for part in module.modules():
        for binding in getattr(part, "bindings", ()):
            known = found.get(binding.case.op, ())
            found[binding.case.op] = tuple(dict.fromkeys((*known, *binding.providers)))
    return found


def merge(linears: Sequence[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights (and biases) of linears of one input, joined along the outputs.

    Weights: [out_i, in] -> [sum of out_i, in]; biases: [out_i] -> [sum of out_i].

    The linears' own parameters become views of the joined ones: both use the same memory.
    """
    weight = torch.cat([linear.weight.detach() for linear in linears])
    has_bias = linears[0].bias is not None
    bias = torch.cat([linear.bias.detach() for linear in linears]) if has_bias else None
    start = 0
    for linear in linears:
        stop = start + linear.out_features
        linear.weight.data = weight[start:stop]
        if bias is not None:
            linear.bias.data = bias[start:stop]
        start = stop
    return weight, bias


def _norm_facts(weight: torch.Tensor) -> Facts:
    return {"dtype": dtype_name(weight), "hidden": weight.shape[0]}


def frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    """The tensor's memory as a parameter that is not trained."""
    return torch.nn.Parameter(tensor.detach(), requires_grad=False)
