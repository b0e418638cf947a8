"""The paged KV cache: its arithmetic, its blocks, its memory."""

from vllm_adapter.engine.kv_cache.blocks import BlockPool, BlockSize, BlockTable
from vllm_adapter.engine.kv_cache.cache import PagedKVCache

__all__ = ["BlockPool", "BlockSize", "BlockTable", "PagedKVCache"]
