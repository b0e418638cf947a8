"""Parallel groups: which sizes a model's heads and layers allow, and which of them is taken.

A tensor-parallel group stays inside one link domain, since every layer ends in a sum over it;
stages of a pipeline pass on one row a token, and may lie in different domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vllm_adapter.errors import InputError
from vllm_adapter.planning.box import PlanBox
from vllm_adapter.planning.demand import ModelDemand
from vllm_adapter.planning.sizing import RankGroups, Sizing
from vllm_adapter.planning.workload import Objective

Fit = Callable[[RankGroups], Sizing]


def tensor_sizes(demand: ModelDemand, most: int) -> list[int]:
    """Sizes of a tensor-parallel group that a model's heads can be dealt out to, up to `most`."""
    heads, kv = demand.shape.heads, demand.shape.kv_heads
    latent = demand.shape.latent is not None
    return [
        n for n in range(1, most + 1) if heads % n == 0 and (latent or kv % n == 0 or n % kv == 0)
    ]


def layers_of_stages(layers: int, stages: int) -> list[int]:
    """How many layers each stage of a pipeline has: as evenly as can be, the first ones more."""
    least, more = divmod(layers, stages)
    return [least + (at < more) for at in range(stages)]


def choices(demand: ModelDemand, box: PlanBox, most: int) -> Iterator[RankGroups]:
    """Groups of at most so many ranks, those of the fewest ranks a replica first.

    A size is left out where a larger one leaves fewer devices over.
    """
    units = {n: len(box.in_groups(n)) // n for n in tensor_sizes(demand, most)}
    used = {n: n * count for n, count in units.items()}
    sizes = [n for n in used if used[n] >= max(used[m] for m in used if m >= n)]
    found = [
        RankGroups(tensor, pipeline, units[tensor] // pipeline)
        for tensor in sizes
        for pipeline in range(1, units[tensor] + 1)
        if pipeline <= demand.shape.layers
        and units[tensor] % pipeline == 0
        # a pipeline is for what one domain cannot hold
        and (pipeline == 1 or tensor == sizes[-1])
    ]
    yield from sorted(found, key=lambda one: (one.ranks, one.pipeline))


def choose(
    demand: ModelDemand,
    box: PlanBox,
    objective: Objective,
    fit: Fit,
    fixed: dict[str, int],
    most: int | None = None,
) -> tuple[RankGroups, str, bool]:
    """(groups, reason, whether they hold the demand).

    Throughput takes the fewest devices a replica that hold it, and replicas of it on the others;
    latency the largest tensor-parallel group of one domain, since each rank then reads less.

    Raises:
        InputError: sizes of the operator that the devices or the heads do not allow.
    """
    count = len(box.devices)
    if fixed:
        groups = _fixed(demand, count, box.domain_size, fixed)
        return groups, "the operator's own flags", fit(groups).fits
    found = list(choices(demand, box, min(box.domain_size, most or box.domain_size)))
    if objective == "latency":
        found.sort(key=lambda one: (one.pipeline, -one.tensor))
    holding = next((one for one in found if fit(one).fits), None)
    if holding is None:
        largest = max(found, key=lambda one: (one.ranks, one.tensor))
        return largest, "no group of these devices holds it; the largest is shown", False
    return holding, _why(demand, holding, objective, box, fit), True


def _fixed(demand: ModelDemand, count: int, domain: int, fixed: dict[str, int]) -> RankGroups:
    tensor, pipeline = fixed.get("tensor_parallel", 1), fixed.get("pipeline_parallel", 1)
    data = fixed.get("data_parallel", 1)
    groups = RankGroups(tensor, pipeline, data)
    if groups.devices > count:
        raise InputError(
            f"the flags ask for {groups.devices} devices ({tensor} x {pipeline} x {data}), and "
            f"{count} can be used",
            hint="ask for fewer, or see `vllm-adapter devices` for why others are not used",
        )
    sizes = tensor_sizes(demand, max(count, domain))
    if tensor not in sizes:
        raise InputError(
            f"{demand.shape.heads} query heads and {demand.shape.kv_heads} KV heads cannot be "
            f"dealt out to {tensor} ranks",
            hint=f"sizes that can: {', '.join(map(str, sizes))}",
        )
    if pipeline > demand.shape.layers:
        raise InputError(
            f"{demand.shape.layers} layers cannot be dealt out to {pipeline} stages",
            hint="take a smaller --pipeline-parallel-size",
        )
    return groups


def _why(
    demand: ModelDemand, groups: RankGroups, objective: Objective, box: PlanBox, fit: Fit
) -> str:
    count, layers = len(box.devices), demand.shape.layers
    if count == 1:
        return "one device holds it"
    parts = []
    if objective == "latency":
        parts.append(
            f"latency: {groups.tensor} ranks read a {groups.tensor}th of the weights each"
            if groups.tensor > 1
            else "latency: the heads can be dealt out to no more ranks of one domain"
        )
    elif groups.ranks == 1:
        parts.append("throughput: one device holds it, and every other serves a replica")
    else:
        parts.append(f"throughput: {groups.ranks} devices are the fewest that hold it")
    if groups.tensor > 1:
        parts.append(
            f"{groups.tensor} is at most the {box.domain_size} of one link domain "
            f"({box.domains_why})"
        )
        kv = demand.shape.kv_heads
        if demand.kv_layers and groups.tensor > kv and demand.shape.latent is None:
            parts.append(f"{groups.tensor // kv} ranks each keep a copy of the same KV head")
    if groups.pipeline > 1:
        parts.append(
            f"{groups.pipeline} stages of {-(-layers // groups.pipeline)} of {layers} layers at "
            "most, which may lie in different domains"
        )
    return "; ".join(parts)
