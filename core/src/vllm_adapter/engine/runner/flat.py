"""A decoder as a flat list of bound calls over packed tokens, without modules between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vllm_adapter.engine.integrations.layers import DecoderLayer, RMSNorm
from vllm_adapter.engine.kv_cache import PagedKVCache
from vllm_adapter.engine.ops.step import Step

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FlatLayer:
    """What one layer calls, in order, and the weights that it calls it with."""

    norm: Run
    add_norm: Run
    input_weight: torch.Tensor
    input_eps: float
    qkv: Run
    head_norms: tuple[tuple[Run, torch.Tensor, float], ...]
    rotate: Run
    attention: Run
    out: Run
    post_weight: torch.Tensor
    post_eps: float
    gate_up: Run
    activate: Run
    down: Run
    heads: int
    kv_heads: int
    head_size: int


class FlatDecoder:
    """tokens and their places -> hidden states and logits, by the operators that layers bound.

    The residual of a layer is added in the norm of the next, which saves one call a layer.
    """

    def __init__(
        self,
        embedding: torch.Tensor,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        head: Run,
        cache: PagedKVCache,
    ) -> None:
        """`embedding` is [vocabulary, hidden]; `head` takes [rows, hidden] to logits."""
        self.embedding, self.cache, self._head = embedding, cache, head
        self._norm = norm
        self._layers = [_of(layer) for layer in layers]
        kinds = {layer.attention.bindings[1]: layer.attention for layer in layers}
        self._attentions = list(kinds.values())

    @property
    def bindings(self) -> list[Any]:
        """The attention of each kind of layer: what is planned once a step."""
        return [attention.bindings[1] for attention in self._attentions]

    def plan(self, step: Step) -> None:
        """The step moment, outside of any graph."""
        for attention in self._attentions:
            attention.plan(step)

    def hidden(
        self, tokens: torch.Tensor, positions: torch.Tensor, rope: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """tokens, positions: int64[T]; rope: [positions, head_size] -> normed [T, hidden]."""
        x = self.embedding.index_select(0, tokens)
        residual: torch.Tensor | None = None
        for layer, kv in zip(self._layers, self.cache.layers, strict=True):
            if residual is None:
                residual = x
                normed = layer.norm(x, layer.input_weight, layer.input_eps)
            else:
                normed, residual = layer.add_norm(x, residual, layer.input_weight, layer.input_eps)
            fused = layer.qkv(normed).view(
                x.shape[0], layer.heads + 2 * layer.kv_heads, layer.head_size
            )
            query, key, value = fused.split([layer.heads, layer.kv_heads, layer.kv_heads], dim=1)
            if layer.head_norms:
                query, key = (
                    run(part, weight, eps)
                    for part, (run, weight, eps) in zip(
                        (query, key), layer.head_norms, strict=True
                    )
                )
            layer.rotate(positions, query, key, rope, False)
            attended = layer.attention(query, key, value, *kv, step)
            normed, residual = layer.add_norm(
                layer.out(attended.flatten(1)), residual, layer.post_weight, layer.post_eps
            )
            x = layer.down(layer.activate(layer.gate_up(normed)))
        last = self._norm
        assert residual is not None
        add_norm = self._layers[-1].add_norm
        result: torch.Tensor = add_norm(x, residual, last.weight, last.eps)[0]
        return result

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [rows, vocabulary]."""
        result: torch.Tensor = self._head(hidden)
        return result


def _of(layer: DecoderLayer) -> FlatLayer:
    shape = layer.shape
    return FlatLayer(
        norm=layer.input_norm._run,
        add_norm=layer.post_norm._run,
        input_weight=layer.input_norm.weight,
        input_eps=layer.input_norm.eps,
        qkv=layer.qkv.bound(),
        head_norms=tuple(map(_norm, layer.head_norms)),
        rotate=layer._rotate,
        attention=layer.attention.forward,
        out=layer.out.bound(),
        post_weight=layer.post_norm.weight,
        post_eps=layer.post_norm.eps,
        gate_up=layer.gate_up.bound(),
        activate=layer._silu_and_mul,
        down=layer.down.bound(),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
    )


def _norm(module: Any) -> tuple[Run, torch.Tensor, float]:
    return module._run, module.weight, module.eps
