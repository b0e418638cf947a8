"""PortableAttention: paged attention on any device, without `if device == ...`."""

from __future__ import annotations

import torch

from vllm_adapter.engine.kv_cache import PagedKVCache
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import Facts, OpCase, dtype_name
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.errors import InputError
from vllm_adapter.settings import Settings


class PortableAttention(torch.nn.Module):
    """Causal attention of one layer over a paged KV cache.

    All layers of one shape that share a cache share their bindings: call `plan(step)` on one of
    them once a step, outside of any compiled graph; `forward` may then be traced.

    Raises:
        UnsupportedCase: nothing on the device runs these heads, this dtype or this block size.
    """

    def __init__(
        self,
        heads: int,
        cache: PagedKVCache,
        *,
        dtype: torch.dtype,
        scale: float | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
        settings: Settings | None = None,
    ) -> None:
        """`heads` query heads over `cache.size.kv_heads` KV heads; `scale` is head_size^-0.5.

        `window` counts tokens of a sliding window, `soft_cap` bounds the scores; 0 is off.
        """
        super().__init__()
        size, device = cache.size, cache.device
        if heads % size.kv_heads:
            raise InputError(
                f"{heads} query heads cannot share {size.kv_heads} KV heads evenly",
                hint="the number of query heads must be a multiple of the number of KV heads",
            )
        self.scale = size.head_size**-0.5 if scale is None else scale
        self.window, self.soft_cap = window, soft_cap
        name = dtype_name(torch.empty(0, dtype=dtype))
        kept = dtype_name(torch.empty(0, dtype=cache.dtype))
        stored: Facts = {
            "dtype": name,
            "head_size": size.head_size,
            "block_size": size.block_size,
            "kv_dtype": "auto" if kept == name else kept,
        }
        attend: Facts = {
            **stored,
            "gqa_ratio": heads // size.kv_heads,
            "window": window,
            "soft_cap": soft_cap,
        }
        write = bind(OpCase.of("reshape_and_cache", device, stored), settings)
        read = bind(OpCase.of("paged_attention", device, attend), settings, owner=cache)
        self.bindings = (write, read)
        self._write, self._attend, self._handle = write.run, read.run, read.handle

    def plan(self, step: Step) -> None:
        """The step moment: once for all layers that share the binding."""
        self.bindings[1].plan(step)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        step: Step,
    ) -> torch.Tensor:
        """query[T, H, D], key and value[T, KH, D], caches of this layer -> [T, H, D]."""
        self._write(key, value, key_cache, value_cache, step.slot_mapping)
        result: torch.Tensor = self._attend(
            query,
            key_cache,
            value_cache,
            step.block_table,
            step.seq_lens,
            step.query_start_loc,
            self.scale,
            self.window,
            self.soft_cap,
            self._handle,
        )
        return result
