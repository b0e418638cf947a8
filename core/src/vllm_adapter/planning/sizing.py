"""Whether a demand fits: memory of a rank against what sequences need, in bytes. No opinion.

All is monotone: more capacity leaves more room, a longer context or more sequences need more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vllm_adapter.planning.demand import ModelDemand
from vllm_adapter.planning.memory import RankMemory, activation_bytes, rank_weights
from vllm_adapter.planning.tensors import WeightPacking

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class RankGroups:
    """Sizes of the parallel groups: ranks of one replica are tensor x pipeline."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def ranks(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.ranks * self.data


@dataclass(frozen=True, slots=True)
class SizingInput:
    """What sizes depend on. `share` of `capacity` is planned with; `reserve` is not ours.

    `fixed_kv` is a KV cache of just so many bytes, where it was asked for.
    """

    demand: ModelDemand
    dtype: str
    packing: WeightPacking | None
    kv_dtype: str
    capacity: int
    share: float
    reserve: int
    groups: RankGroups
    sequences: int
    chunk: int
    block: int
    context: int
    concurrency: int
    fixed_kv: int | None = None


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer. `need` bytes of KV cache a rank against `room`; `block_bytes` of one block."""

    memory: RankMemory
    need: int
    block_bytes: int
    each_sequence: int
    room: int

    @property
    def fits(self) -> bool:
        """Whether all sequences fit at full length; without a KV cache, whether the rest does."""
        return self.memory.kv >= 0 and self.need <= self.room <= self.memory.kv

    @property
    def blocks(self) -> int:
        """KV blocks of a replica."""
        return max(0, self.room) // self.block_bytes if self.block_bytes else 0

    @property
    def at_full_context(self) -> float:
        """Sequences of full length that the room holds."""
        return max(0, self.room) / self.each_sequence if self.each_sequence else 0.0


def size(asked: SizingInput) -> Sizing:
    """The sizes of one rank, the fullest."""
    demand, groups = asked.demand, asked.groups
    weights = rank_weights(demand, asked.dtype, asked.packing, groups.tensor, groups.pipeline)
    active = activation_bytes(
        demand, asked.dtype, groups.tensor, step_tokens(asked), asked.sequences
    )
    memory = RankMemory(
        asked.capacity, int(asked.capacity * asked.share), weights, active, asked.reserve
    )
    each = _on_stage(
        demand, demand.kv_bytes(asked.kv_dtype, asked.context, groups.tensor, asked.block), groups
    )
    token = demand.kv_bytes_a_token(asked.kv_dtype, groups.tensor)
    block_bytes = _on_stage(demand, asked.block * token, groups)
    sequences = -(-asked.concurrency // groups.data)
    room = memory.kv if asked.fixed_kv is None else asked.fixed_kv
    return Sizing(memory, sequences * each, block_bytes, each, room)


def step_tokens(asked: SizingInput) -> int:
    """Tokens of the largest step: never more than all sequences have."""
    return min(asked.chunk, asked.context * asked.sequences)


def _on_stage(demand: ModelDemand, whole: int, groups: RankGroups) -> int:
    """The part of a pipeline's fullest stage, whose layers are dealt out evenly."""
    layers = demand.shape.layers
    return -(-whole * -(-layers // groups.pipeline) // layers)
