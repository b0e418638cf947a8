"""The operators' specifications."""

from collections.abc import Mapping
from typing import Final

from vllm_adapter.engine.ops.catalog import (
    attention,
    embedding,
    fused_add_rms_norm,
    gelu,
    layer_norm,
    linear,
    paged_attention,
    reshape_and_cache,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
)
from vllm_adapter.engine.ops.spec import OpSpec

SPECS: Final[Mapping[str, OpSpec]] = {
    spec.name: spec
    for spec in (
        linear.SPEC,
        rms_norm.SPEC,
        fused_add_rms_norm.SPEC,
        silu_and_mul.SPEC,
        layer_norm.SPEC,
        gelu.GELU,
        gelu.GELU_AND_MUL,
        embedding.SPEC,
        rotary_embedding.SPEC,
        reshape_and_cache.SPEC,
        paged_attention.SPEC,
        attention.SPEC,
    )
}
