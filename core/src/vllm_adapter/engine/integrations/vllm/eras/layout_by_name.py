"""vLLM from 0.29: a layer's cache is [blocks, kv_heads, block, K|V] for every backend."""

from __future__ import annotations


class LogicalCache:
    """Nothing to say: any layout that vLLM knows serves, since kernels get strides."""

    # upstream: vllm@0.29 v1/attention/backend.py (supported_kv_cache_layouts)
