"""The portable operators that a planned model calls on one rank, as cases with all their facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_adapter.contract.operators import FactValue
from vllm_adapter.planning.plan import ExecutionPlan


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One operator with its facts; `of` names the part of the model that calls it."""

    operator: str
    of: str
    facts: dict[str, FactValue]


@dataclass(frozen=True, slots=True)
class OutsidePart:
    """A part of the model that no portable operator is for: vLLM's own code runs it."""

    of: str
    why: str


def model_cases(plan: ExecutionPlan) -> tuple[list[ModelCase], list[OutsidePart]]:
    """(cases, each once; parts that no operator is for)."""
    found: dict[tuple[object, ...], ModelCase] = {}
    for one in _cases(plan):
        key = (one.operator, *sorted(one.facts.items()))
        of = f"{found[key].of}, {one.of}" if key in found else one.of
        found[key] = ModelCase(one.operator, of, one.facts)
    return list(found.values()), list(_outside(plan))


def _cases(plan: ExecutionPlan) -> Iterator[ModelCase]:
    shape, dtype = plan.demand.shape, plan.asked.dtype
    packed = plan.asked.packing is not None

    def case(operator: str, of: str, **facts: FactValue) -> ModelCase:
        return ModelCase(operator, of, {"dtype": dtype, **facts})

    yield case("embedding", "tokens", hidden=shape.hidden)
    for one in plan.gemms:
        if "{expert}" in one.name or (packed and "{layer}" in one.name):
            continue
        bias = f"{one.name}.bias" in {group.name for group in plan.demand.tensors}
        name = one.name.replace("layers.{layer}.", "").replace("encoder.layer.{layer}.", "")
        yield case("linear", name, in_features=one.k, out_features=one.n, bias=bias)
    if shape.family.encoder:
        yield case("layer_norm", "norms", hidden=shape.hidden, bias=True)
    else:
        yield case("rms_norm", "norms", hidden=shape.hidden)
        yield case("fused_add_rms_norm", "norms", hidden=shape.hidden)
        if shape.family.head_norm:
            yield case("rms_norm", "norms of heads", hidden=shape.head_dim)
    yield from _activations(plan)
    if shape.latent is None:
        yield from _attention(plan)


def _activations(plan: ExecutionPlan) -> Iterator[ModelCase]:
    shape, dtype, ranks = plan.demand.shape, plan.asked.dtype, plan.groups.tensor
    width = -(-shape.width // ranks)
    dense = shape.experts is None or len(shape.experts.layers) < shape.layers
    if shape.family.encoder:
        yield ModelCase("gelu", "MLP", {"dtype": dtype, "hidden": width, "tanh": False})
    elif dense and shape.family.act == "gelu":
        yield ModelCase("gelu_and_mul", "MLP", {"dtype": dtype, "hidden": width, "tanh": True})
    elif dense:
        yield ModelCase("silu_and_mul", "MLP", {"dtype": dtype, "hidden": width})


def _attention(plan: ExecutionPlan) -> Iterator[ModelCase]:
    shape, asked = plan.demand.shape, plan.asked
    same: dict[str, FactValue] = {"dtype": asked.dtype, "head_size": shape.head_dim}
    ratio = shape.gqa_ratio
    if shape.family.encoder:
        whole = {"gqa_ratio": ratio, "causal": False, "window": 0, "soft_cap": 0.0}
        yield ModelCase("attention", "attention", {**same, **whole})
        return
    yield ModelCase(
        "rotary_embedding", "positions", {**same, "interleaved": False, "partial": False}
    )
    kv = "auto" if asked.kv_dtype == asked.dtype else asked.kv_dtype
    cached: dict[str, FactValue] = {**same, "block_size": asked.block, "kv_dtype": kv}
    yield ModelCase("reshape_and_cache", "KV cache", cached)
    for window in sorted(set(shape.windows)):
        facts: dict[str, FactValue] = {
            "gqa_ratio": ratio,
            "window": window,
            "soft_cap": shape.soft_cap,
        }
        yield ModelCase("paged_attention", "attention", {**cached, **facts})


def _outside(plan: ExecutionPlan) -> Iterator[OutsidePart]:
    shape, packing = plan.demand.shape, plan.asked.packing
    if shape.experts is not None:
        why = "no portable operator is for routed experts"
        yield OutsidePart(f"{shape.experts.count} experts", why)
    if shape.latent is not None:
        yield OutsidePart("latent attention", "no portable operator reads a latent cache")
    if packing is not None:
        why = f"no portable operator multiplies {packing.dtype} weights with scales"
        yield OutsidePart("packed products", why)
