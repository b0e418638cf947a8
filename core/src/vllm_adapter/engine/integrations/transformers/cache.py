"""transformers' Cache over our paged KV cache, and the packing of padded batches."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from vllm_adapter.engine.integrations.transformers.packing import Packing, places, real_tokens
from vllm_adapter.engine.integrations.transformers.rope import RopeTable
from vllm_adapter.engine.kv_cache import PagedKVCache
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.errors import UnsupportedModel

CROPPING: Final = "cropping the cache (assisted generation, prompt look-up)"


@dataclass(frozen=True)
class PackedStep(Packing):
    """One forward of a decoder: the packed batch, and what its paged attention needs."""

    step: Step
    positions: torch.Tensor
    """int64[T], as the model counts them."""
    rope: torch.Tensor
    """[at least as many positions, head_size]: cos, then sin."""
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    owner: PagedCache
    """Keeps the blocks taken for as long as the step is in use."""


class _NoCopy:
    """A copy would share blocks with the original, and write over its tokens."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused: copies and pickles."""
        _refuse("copying or pickling it")


class PagedCache(_NoCopy, Cache):  # type: ignore[misc]  # transformers ships no types
    """The KV cache of one batch. Its blocks go back to the pool when it is collected."""

    def __init__(self, kv: PagedKVCache, rows: int) -> None:
        self.kv = kv
        self.sequences = [kv.new_sequence() for _ in range(rows)]
        self.columns = 0
        """Columns of the padded batch so far: what transformers calls the sequence length."""
        super().__init__(layers=[_PagedLayer(self) for _ in range(kv.size.layers)])
        self._release = weakref.finalize(self, kv.release, self.sequences)

    def advance(
        self,
        queries: int,
        mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        rope: RopeTable,
    ) -> PackedStep:
        """The step of `queries` more columns; `mask` is 2-D over all columns, 1 where real.

        mask: [batch, columns so far + queries]; position_ids: int64 [batch or 1, queries].

        Raises:
            UnsupportedModel: a mask that does not fit what is cached, or a position that `rope`
                has not.
            OutOfMemory: the KV cache cannot hold it.
        """
        batch = len(self.sequences)
        counts, rows = self._real_tokens(queries, mask)
        highest = max(s.length + n for s, n in zip(self.sequences, counts, strict=True))
        if position_ids is None:
            position_ids = torch.arange(
                self.columns, self.columns + queries, device=self.kv.device
            )[None]
            highest = max(highest, self.columns + queries)
        elif position_ids.numel():
            highest = max(highest, int(position_ids.max()) + 1)
        table = rope.upto(highest)
        step = self.kv.advance(self.sequences, counts)
        self.columns += queries
        positions = position_ids.expand(batch, queries).reshape(-1)
        positions = positions if rows is None else positions[rows]
        return PackedStep(rows, step, positions, table, self.kv.layers, self)

    def _real_tokens(
        self, queries: int, mask: torch.Tensor | None
    ) -> tuple[list[int], torch.Tensor | None]:
        batch, columns = len(self.sequences), self.columns + queries
        if mask is None:
            return [queries] * batch, None
        real = real_tokens(mask, batch, columns)
        cached = real[:, : self.columns].sum(1).tolist()
        if cached != [s.length for s in self.sequences]:
            raise UnsupportedModel(
                "the attention mask hides tokens that were real before, or the reverse",
                hint="keep the mask of the tokens that are cached, and only append to it",
            )
        new = real[:, self.columns :]
        return new.sum(1).tolist(), places(new, self.kv.device)

    def reset(self) -> None:
        """Forgets all tokens and gives the blocks back."""
        self.kv.release(self.sequences)
        self.columns = 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refused: beam search."""
        _refuse("beam search")

    @property
    def is_croppable(self) -> bool:
        """Refused as `crop` is: only who wants to crop asks."""
        _refuse(CROPPING)

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Refused: assisted generation and prompt look-up."""
        _refuse(CROPPING)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused: contrastive search."""
        _refuse("repeating the cache's batch")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refused: contrastive search."""
        _refuse("selecting from the cache's batch")


class _PagedLayer(_NoCopy, CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """One layer as transformers asks about it; the tokens are in `PagedKVCache.layers`."""

    is_sliding = False

    def __init__(self, owner: PagedCache) -> None:
        super().__init__()
        self._owner = weakref.ref(owner)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the memory is the pool's."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Refused: our layers write their keys and values themselves, so a plain one is asking."""
        raise UnsupportedModel(
            "a cache of an adapted model was given to a model that is not adapted",
            hint="start without past_key_values, or adapt(model, device) first",
        )

    def get_seq_length(self) -> int:
        """Columns so far, padding included."""
        owner = self._owner()
        return owner.columns if owner is not None else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(columns after this forward, offset 0)."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """-1: it grows."""
        return -1


def _refuse(what: str) -> NoReturn:
    raise UnsupportedModel(
        f"the paged KV cache does not serve {what}",
        hint="use greedy or sampling generation with the default cache, or unadapt(model)",
    )
