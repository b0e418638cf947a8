"""A mixture of experts in torch, where vLLM has no kernels for the routed layers."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F

from vllm_adapter.engine.integrations.vllm.replaced import replace as put
from vllm_adapter.engine.integrations.vllm.replaced import subclass
from vllm_adapter.errors import UnsupportedCase

_PACKAGE: Final = "vllm.model_executor.layers.fused_moe"
_METHOD: Final = f"{_PACKAGE}.unquantized_fused_moe_method"
_ROUTER: Final = f"{_PACKAGE}.router.fused_topk_router"
GATES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}
"""By vLLM's name of the activation."""


def replace() -> None:
    """Has vLLM make our method for routed layers, and choose experts in torch."""
    custom_op = importlib.import_module("vllm.model_executor.custom_op")
    if importlib.util.find_spec(_ROUTER) is None:
        return  # a release of another form: its own code meets a model that has experts
    base: Any = importlib.import_module(_METHOD).UnquantizedFusedMoEMethod
    ways = [name for name in vars(custom_op.CustomOp) if name.startswith("forward_")]
    members = {"__init__": _init_of(base), "is_monolithic": False}
    put(custom_op, "CustomOp", base, subclass(base, members | dict.fromkeys(ways, _forward)))
    router: Any = importlib.import_module(_ROUTER)
    # upstream: vllm@0.32 fused_topk_router.py:62 takes these two by name at each call
    router.vllm_topk_softmax = _choosing(lambda scores: scores.softmax(-1))
    router.vllm_topk_sigmoid = _choosing(torch.Tensor.sigmoid)


def _init_of(base: Any) -> Any:
    def __init__(self: Any, moe: Any) -> None:
        name = getattr(getattr(moe, "activation", None), "value", "silu")
        if name not in GATES or getattr(moe, "has_bias", False):
            what = name if name not in GATES else "a bias"
            raise UnsupportedCase(
                f"no torch code runs a mixture of experts with {what}",
                hint=f"serve a model whose experts have {', '.join(GATES)} and no bias",
            )
        base.__init__(self, moe)

    return __init__


def _choosing(of_scores: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def choose(
        weights: torch.Tensor,
        indices: torch.Tensor,
        token_expert_indices: torch.Tensor,
        gating_output: torch.Tensor,
        renormalize: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """weights, indices: [tokens, k] of gating_output[tokens, experts]."""
        best, at = of_scores(gating_output.float()).topk(weights.shape[1], dim=-1)
        if renormalize:
            best = best / best.sum(-1, keepdim=True)
        return best.to(weights.dtype), at.to(indices.dtype)

    return choose


def _forward(
    self: Any,
    layer: Any,
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    shared_experts: Any = None,
    shared_experts_input: torch.Tensor | None = None,
) -> torch.Tensor:
    return run_experts(
        x,
        layer.w13_weight,
        layer.w2_weight,
        topk_weights,
        topk_ids,
        GATES[layer.activation.value],
        expert_map=layer.expert_map,
        weighs_input=layer.apply_router_weight_on_input,
    )


def run_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate: Callable[[torch.Tensor], torch.Tensor],
    *,
    expert_map: torch.Tensor | None = None,
    weighs_input: bool = False,
) -> torch.Tensor:
    """The sum of the chosen experts' results, each by its weight.

    x: [tokens, hidden]; w13: [experts, 2 * inner, hidden], the gate's rows first; w2:
    [experts, hidden, inner]; weights, ids: [tokens, k] -> [tokens, hidden]. `expert_map` int[all
    experts] has each expert's place here, or -1 where another rank has it.

    Which tokens an expert has is read on the host: one wait for the device.
    """
    chosen: list[list[int]] = ids.tolist()
    places = None if expert_map is None else expert_map.tolist()
    rows_of: dict[int, list[tuple[int, int]]] = {}
    for token, experts in enumerate(chosen):
        for column, expert in enumerate(experts):
            place = expert if places is None else places[expert]
            if place >= 0:
                rows_of.setdefault(place, []).append((token, column))
    out = torch.zeros_like(x)
    for place in sorted(rows_of):
        pairs = torch.tensor(rows_of[place], dtype=torch.int64).to(x.device)
        rows, columns = pairs[:, 0], pairs[:, 1]
        share = weights[rows, columns].to(x.dtype)[:, None]
        given = x[rows] * share if weighs_input else x[rows]
        first, second = F.linear(given, w13[place]).chunk(2, dim=-1)
        made = F.linear(gate(first) * second, w2[place])
        # A token has an expert once, so that no row is written twice.
        out[rows] = out[rows] + (made if weighs_input else made * share)
    return out
