"""The operators' specifications."""

from collections.abc import Mapping
from typing import Final

from vllm_adapter.engine.ops.catalog.attention import ATTENTION, PAGED_ATTENTION
from vllm_adapter.engine.ops.catalog.layers import (
    EMBEDDING,
    FUSED_ADD_RMS_NORM,
    GELU,
    GELU_AND_MUL,
    LAYER_NORM,
    LINEAR,
    QUANTIZED_LINEAR,
    RESHAPE_AND_CACHE,
    RMS_NORM,
    ROTARY_EMBEDDING,
    SILU_AND_MUL,
)
from vllm_adapter.engine.ops.spec import OpSpec

SPECS: Final[Mapping[str, OpSpec]] = {
    spec.name: spec
    for spec in (
        LINEAR,
        QUANTIZED_LINEAR,
        RMS_NORM,
        FUSED_ADD_RMS_NORM,
        SILU_AND_MUL,
        LAYER_NORM,
        GELU,
        GELU_AND_MUL,
        EMBEDDING,
        ROTARY_EMBEDDING,
        RESHAPE_AND_CACHE,
        PAGED_ATTENTION,
        ATTENTION,
    )
}
