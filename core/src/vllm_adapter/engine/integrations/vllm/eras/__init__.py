"""What differs between vLLM's releases: one small module an era, chosen by what vLLM's objects
have and never by a version."""

from __future__ import annotations

from vllm.v1.attention.backend import AttentionBackend

from vllm_adapter.engine.integrations.vllm.eras import layout_by_name, layout_by_shape

CacheGeometry: type = (
    layout_by_shape.ShapedCache
    if hasattr(AttentionBackend, "get_kv_cache_shape")
    else layout_by_name.LogicalCache
)
"""What a backend says of a layer's cache; goes before vLLM's class."""
