"""vLLM's activations and rotary embeddings, which call our operators where they bind."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from vllm_adapter.engine.integrations.vllm import policy, release_differences
from vllm_adapter.engine.integrations.vllm.replaced import replace as put
from vllm_adapter.engine.integrations.vllm.replaced import subclass
from vllm_adapter.engine.ops.spec import Fn

_silu: Final = policy.ByWidth("silu_and_mul")
_gelu: Final = {
    approximate: policy.ByWidth("gelu_and_mul", tanh=approximate == "tanh")
    for approximate in ("none", "tanh")
}

Find = Callable[[Any, torch.Tensor], Fn | None]
"""What runs a module's input, as a function of that input alone; None where vLLM's own does."""


def _find_silu(module: Any, x: torch.Tensor) -> Fn | None:
    return _silu.find(x.dtype, x.shape[-1] // 2)


def _find_gelu(module: Any, x: torch.Tensor) -> Fn | None:
    run = _gelu[module.approximate].find(x.dtype, x.shape[-1] // 2)
    tanh = module.approximate == "tanh"
    return None if run is None else lambda given: run(given, tanh)


_ACTIVATIONS: Final[tuple[tuple[str, str, Find], ...]] = (
    ("silu_and_mul", "SiluAndMul", _find_silu),
    ("gelu_and_mul", "GeluAndMul", _find_gelu),
)


def replace() -> None:
    """Has vLLM make our classes, for each operator that the policy concerns."""
    for registry in release_differences.registries():
        package = registry.__name__.rpartition(".")[0]
        activation = importlib.import_module(f"{package}.layers.activation")
        for op, name, find in _ACTIVATIONS:
            base = getattr(activation, name, None)
            if base is not None and policy.concerns(op):
                put(registry, "CustomOp", base, _activation(registry, base, find))
    if policy.concerns("rotary_embedding"):
        custom_op = importlib.import_module("vllm.model_executor.custom_op")
        for base in _rotary_classes():
            put(custom_op, "CustomOp", base, _rotary(custom_op, base))


def _ways(registry: ModuleType) -> list[str]:
    """Every method that CustomOp may call: by platform, and `native` where it is not enabled."""
    return [name for name in vars(registry.CustomOp) if name.startswith("forward_")]


def _activation(registry: ModuleType, base: Any, find: Find) -> type:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        # It says no width before it is called, when weights are loaded: too late to refuse.
        width = release_differences.gated_width(get_current_vllm_config())
        if width is not None:
            find(self, torch.empty(0, 2 * width))

    def way(name: str) -> Any:
        theirs = getattr(base, name)
        is_static = isinstance(vars(base).get(name), staticmethod)

        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            run = find(self, x)
            if run is not None:
                result: torch.Tensor = run(x)
                return result
            kept: torch.Tensor = theirs(x) if is_static else theirs(self, x)
            return kept

        return forward

    members = {"__init__": __init__, **{name: way(name) for name in _ways(registry)}}
    made: type = subclass(base, members)
    return made


def _rotary_classes() -> list[type]:
    """RotaryEmbedding, and those of its kinds that differ in the table of cos and sin alone."""
    ways = ("forward_native", "forward_cuda", "forward_cpu")
    return [
        kind
        for kind in vars(rotary_embedding).values()
        if isinstance(kind, type)
        and issubclass(kind, RotaryEmbedding)
        and all(getattr(kind, way) is getattr(RotaryEmbedding, way) for way in ways)
    ]


def _rotary(registry: ModuleType, base: Any) -> type:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        facts = {
            "dtype": str(self.dtype).removeprefix("torch."),
            "head_size": self.head_size,
            "interleaved": not self.is_neox_style,
            "partial": self.rotary_dim != self.head_size,
        }
        binding = policy.bound("rotary_embedding", facts)
        self._rotate = None if binding is None else policy.run_of(binding)

    def way(name: str) -> Any:
        theirs = getattr(base, name)

        def forward(
            self: Any,
            positions: torch.Tensor,
            query: torch.Tensor,
            key: torch.Tensor | None = None,
        ) -> Any:
            # Layers that share another's keys rotate the query alone: no operator of ours.
            if self._rotate is None or key is None:
                return theirs(self, positions, query, key)
            table = self._match_cos_sin_cache_dtype(query)
            at, heads = positions.flatten(), (positions.numel(), -1, self.head_size)
            self._rotate(at, query.view(heads), key.view(heads), table, not self.is_neox_style)
            return query, key

        return forward

    members = {"__init__": __init__, **{name: way(name) for name in _ways(registry)}}
    made: type = subclass(base, members)
    return made
