"""Memory of one rank: weights, activations of a step, what the runtime keeps, the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.planning.demand import ModelDemand
from vllm_adapter.planning.dtypes import BITS
from vllm_adapter.planning.tensors import TensorGroup, WeightPacking

VOCAB_PAD: Final = 64
"""vLLM pads the vocabulary to a multiple of it before it is split.

# upstream: vllm@v0.32.0 vllm/model_executor/layers/vocab_parallel_embedding.py:
# DEFAULT_VOCAB_PADDING_SIZE
"""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one device. `kv` is what is left for the KV cache; negative where nothing is."""

    capacity: int
    budget: int
    weights: int
    activations: int
    reserve: int

    @property
    def kv(self) -> int:
        """The budget less all else."""
        return self.budget - self.weights - self.activations - self.reserve

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "capacity_bytes": self.capacity,
            "budget_bytes": self.budget,
            "weight_bytes": self.weights,
            "activation_bytes": self.activations,
            "reserve_bytes": self.reserve,
            "kv_room_bytes": self.kv,
        }


def rank_weights(
    demand: ModelDemand, dtype: str, packing: WeightPacking | None, tensor: int, pipeline: int
) -> int:
    """Weights of the fullest rank: layers are dealt out evenly, embedding and head to the ends."""
    layers = demand.shape.layers
    most = -(-layers // pipeline)
    inside = outside_first = outside_last = 0
    for group in demand.tensors:
        size = _part(demand, group, dtype, packing, tensor)
        if "{layer}" in group.name:
            inside += size
        elif group.name.startswith(("lm_head", "norm", "pooler")):
            outside_last += size
        else:
            outside_first += size
    if pipeline == 1:
        return inside + outside_first + outside_last
    if demand.shape.tied and demand.shape.head:
        outside_last += outside_first  # a tied head is another copy on the last rank
    return -(-inside * most // layers) + max(outside_first, outside_last)


def _part(
    demand: ModelDemand, group: TensorGroup, dtype: str, packing: WeightPacking | None, ranks: int
) -> int:
    whole = demand.group_bytes(group, dtype, packing)
    if group.split == "none" or ranks == 1:
        return whole
    if group.split == "vocab":
        padded = -(-group.shape[0] // VOCAB_PAD) * VOCAB_PAD
        return -(-whole * padded // (group.shape[0] * ranks))
    if group.split == "kv":
        heads = demand.shape.kv_heads
        return whole // heads * max(1, -(-heads // ranks))
    return -(-whole // ranks)


def activation_bytes(
    demand: ModelDemand, dtype: str, tensor: int, tokens: int, sequences: int
) -> int:
    """The most that one step holds at once beside weights and KV cache.

    The larger of a layer (residual, its normed copy, and the widest product with its gated
    result) over `tokens`, and the sampler: logits of each sequence in the model's dtype and in
    float32, with their sorted copy and its int64 order.
    """
    shape = demand.shape
    half = BITS[dtype] / 8
    wide, experts = shape.width, shape.experts
    if experts is not None:
        wide = max(wide, experts.width * experts.each_token, experts.shared_width)
    gated = 1 if shape.family.encoder else 2
    mlp = (gated + 1) * wide / tensor
    query = (shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim) / tensor
    attention = query + shape.heads * shape.head_dim / tensor
    spread = experts.each_token * shape.hidden if experts else 0
    layer = tokens * (2 * shape.hidden + max(mlp + spread, attention)) * half
    sampler = sequences * shape.vocab * (half + 4 + 4 + 8) if shape.head else 0
    return int(max(layer, sampler) + tokens * shape.hidden * half)
