"""Runs a decoder's steps: prefills as they come, decodes by buckets, captured where possible."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.transformers.rope import RopeTable
from vllm_adapter.engine.kv_cache.blocks import BlockTable
from vllm_adapter.engine.ops.plans import PLANS
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.engine.runner.buffers import StepBuffers
from vllm_adapter.engine.runner.flat import FlatDecoder
from vllm_adapter.engine.runner.graphs import CapturedStep, addresses, has_graphs

_log = logging.getLogger("vllm_adapter.runner")
LARGEST_STEP: Final = 16
"""Buckets are powers of two up to this, and its multiples above."""


def bucket_of(rows: int) -> int:
    """The batch size that is run for so many sequences: the rest is padding."""
    if rows <= LARGEST_STEP:
        return 1 << (rows - 1).bit_length()
    return -(-rows // LARGEST_STEP) * LARGEST_STEP


@dataclass(slots=True)
class _Bucket:
    buffers: StepBuffers
    captured: CapturedStep | None = None
    reads: Any = None
    """What the capture holds as constants: addresses of plans, cache and rope."""


class StepRunner:
    """The steps of one decoder over its KV cache. One step runs at a time."""

    def __init__(
        self, decoder: FlatDecoder, rope: RopeTable, context: int, *, graphs: bool = True
    ) -> None:
        """`context` is the most tokens of a sequence; `graphs` may be turned off."""
        self._decoder, self._rope, self._context = decoder, rope, context
        self._cache = decoder.cache
        self._buckets: dict[int, _Bucket] = {}
        self.graphs = graphs and has_graphs(self._cache.device)
        self.captures = 0
        """Steps captured so far."""

    def prefill(self, sequences: Sequence[BlockTable], prompts: Sequence[Sequence[int]]) -> Any:
        """Appends whole prompts; logits [sequences, vocabulary] of each one's last token.

        Raises:
            OutOfMemory: the cache cannot hold them; no sequence was changed.
        """
        step = self._cache.advance(sequences, [len(prompt) for prompt in prompts])
        device = self._cache.device
        tokens = torch.tensor([t for prompt in prompts for t in prompt]).to(device)
        table = self._rope.upto(max(sequence.length for sequence in sequences))
        self._decoder.plan(step)
        hidden = self._decoder.hidden(tokens, step.positions, table, step)
        last = step.query_start_loc[1:].long() - 1
        return self._decoder.logits(hidden.index_select(0, last))

    def decode(self, sequences: Sequence[BlockTable], tokens: torch.Tensor) -> torch.Tensor:
        """Appends one token to each sequence: tokens int64[n] -> logits [n, vocabulary].

        The result is overwritten by the next step of a batch of about this size.

        Raises:
            OutOfMemory: the cache cannot hold them; no sequence was changed.
        """
        self._cache.make_room(sequences)
        bucket = self._bucket(len(sequences))
        step = bucket.buffers.fill(sequences)
        bucket.buffers.tokens[: len(sequences)].copy_(tokens)
        rope = self._rope.upto(self._context)
        self._decoder.plan(step)
        return self._run(bucket, step, rope)[: len(sequences)]

    def _bucket(self, rows: int) -> _Bucket:
        size = bucket_of(rows)
        if size not in self._buckets:
            block = self._cache.size.block_size
            blocks = -(-self._context // block)
            self._buckets[size] = _Bucket(StepBuffers(size, blocks, block, self._cache.device))
        return self._buckets[size]

    def _run(self, bucket: _Bucket, step: Step, rope: torch.Tensor) -> torch.Tensor:
        buffers = bucket.buffers

        def run() -> torch.Tensor:
            """Gives logits [rows, vocabulary]."""
            hidden = self._decoder.hidden(buffers.tokens, buffers.positions, rope, step)
            return self._decoder.logits(hidden)

        if not self.graphs:
            return run()
        reads = self._reads(rope)
        if bucket.captured is not None and bucket.reads == reads:
            return bucket.captured.replay()
        bucket.captured, bucket.reads = None, reads
        result = run()
        # Plans that move between two equal steps cannot be held in a graph.
        self._decoder.plan(step)
        before = self._reads(rope)
        self._decoder.plan(step)
        if before != self._reads(rope):
            _log.warning("steps are not captured: a plan of attention moves from step to step")
            self.graphs = False
            return result
        bucket.captured, bucket.reads = CapturedStep(run, self._cache.device), before
        self.captures += 1
        return bucket.captured.replay()

    def _reads(self, rope: torch.Tensor) -> tuple[Any, ...]:
        """Addresses that a capture holds as constants, beside the buffers'."""
        states = [PLANS[binding.handle].state for binding in self._decoder.bindings]
        layers = self._cache.layers
        places = tuple(tensor.data_ptr() for pair in layers for tensor in pair)
        return tuple(map(addresses, states)), places, rope.data_ptr()
