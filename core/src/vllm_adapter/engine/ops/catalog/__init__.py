"""The operators' specifications, one file each."""

from collections.abc import Mapping
from typing import Final

from vllm_adapter.engine.ops.catalog import (
    fused_add_rms_norm,
    linear,
    paged_attention,
    reshape_and_cache,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
)
from vllm_adapter.engine.ops.spec import OpSpec

SPECS: Final[Mapping[str, OpSpec]] = {
    module.SPEC.name: module.SPEC
    for module in (
        linear,
        rms_norm,
        fused_add_rms_norm,
        silu_and_mul,
        rotary_embedding,
        reshape_and_cache,
        paged_attention,
    )
}
