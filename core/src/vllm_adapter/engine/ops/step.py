"""One forward pass over a paged KV cache: which tokens, whose, where they go."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm_adapter.contract.operators import PHASES


@dataclass(frozen=True, slots=True)
class Step:
    """A batch of B sequences with T new tokens in all, packed without padding.

    The tuples are host values; the tensors hold the same on the device, as the operators take
    them, and are what a captured graph reads.
    """

    query_lens: tuple[int, ...]
    """[B] new tokens of each sequence."""
    context_lens: tuple[int, ...]
    """[B] tokens of each sequence in the cache after this step, the new ones included."""
    slot_mapping: torch.Tensor
    """int64[T] the slot of each new token: block x block size + place; below 0 is padding."""
    block_table: torch.Tensor
    """int32[B, blocks]; what lies beyond a sequence's last block may be anything."""
    seq_lens: torch.Tensor
    """int32[B] is `context_lens`."""
    query_start_loc: torch.Tensor
    """int32[B + 1] running sum of `query_lens`."""
    positions: torch.Tensor
    """int64[T] place of each new token in its sequence."""
    block_size: int
    """Tokens in one block of the cache."""

    @property
    def phase(self) -> str:
        """`decode` (one token each), `prefill` (nothing cached before), or `mixed`."""
        return phase_of(self.query_lens, self.context_lens)


def phase_of(query_lens: tuple[int, ...], context_lens: tuple[int, ...]) -> str:
    """The phase of a batch, from its lengths on the host."""
    decode, prefill, mixed = PHASES
    if all(q == 1 for q in query_lens) and any(c > 1 for c in context_lens):
        return decode
    if query_lens == context_lens:
        return prefill
    return mixed


def make_step(
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    block_table: list[list[int]],
    block_size: int,
    device: torch.device | str = "cpu",
) -> Step:
    """Builds a step's tensors from lengths and block numbers on the host.

    `block_table[b]` lists the blocks of sequence b in order, at least enough for its context.
    """
    slots: list[int] = []
    positions: list[int] = []
    starts = [0]
    for query, context, blocks in zip(query_lens, context_lens, block_table, strict=True):
        span = range(context - query, context)
        positions.extend(span)
        slots.extend(blocks[p // block_size] * block_size + p % block_size for p in span)
        starts.append(starts[-1] + query)
    width = max((len(blocks) for blocks in block_table), default=0)
    padded = [blocks + [-1] * (width - len(blocks)) for blocks in block_table]

    def put(
        values: list[int] | list[list[int]] | tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """values: [batch], [tokens] or [batch, width] on the host -> the same on the device."""
        return torch.tensor(values, dtype=dtype).to(device)

    return Step(
        query_lens,
        context_lens,
        slot_mapping=put(slots, torch.int64),
        block_table=put(padded, torch.int32).view(len(block_table), width),
        seq_lens=put(context_lens, torch.int32),
        query_start_loc=put(starts, torch.int32),
        positions=put(positions, torch.int64),
        block_size=block_size,
    )
