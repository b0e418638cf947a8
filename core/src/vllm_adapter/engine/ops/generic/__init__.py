"""Portable torch implementations, for any device: the provider `torch`.

They are public, as `from vllm_adapter import generic`. A descriptor may name one as its `run`
(`vllm_adapter.engine.ops.generic:linear`) where a chip has nothing better, and by that declares it
as its own.
"""

from vllm_adapter.engine.ops.generic.attention import (
    attention,
    paged_attention,
    paged_decode,
    plan_paged_attention,
    plan_paged_decode,
)
from vllm_adapter.engine.ops.generic.layers import (
    embedding,
    fused_add_rms_norm,
    gelu,
    gelu_and_mul,
    layer_norm,
    linear,
    reshape_and_cache,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
)
from vllm_adapter.engine.ops.generic.quantized import quantized_linear

__all__ = [
    "attention",
    "embedding",
    "fused_add_rms_norm",
    "gelu",
    "gelu_and_mul",
    "layer_norm",
    "linear",
    "paged_attention",
    "paged_decode",
    "plan_paged_attention",
    "plan_paged_decode",
    "quantized_linear",
    "reshape_and_cache",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
]
