"""Every operator's trial: its samples, and the reference that its results are held against."""

from collections.abc import Mapping
from typing import Final

from vllm_adapter_conformance.ops.trial import Trial
from vllm_adapter_conformance.ops.trials import (
    attention,
    embedding,
    fused_add_rms_norm,
    gelu,
    layer_norm,
    linear,
    paged_attention,
    quantized_linear,
    reshape_and_cache,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
)

TRIALS: Final[Mapping[str, Trial]] = {
    "linear": linear.TRIAL,
    "quantized_linear": quantized_linear.TRIAL,
    "rms_norm": rms_norm.TRIAL,
    "fused_add_rms_norm": fused_add_rms_norm.TRIAL,
    "silu_and_mul": silu_and_mul.TRIAL,
    "layer_norm": layer_norm.TRIAL,
    "gelu": gelu.GELU,
    "gelu_and_mul": gelu.GELU_AND_MUL,
    "embedding": embedding.TRIAL,
    "rotary_embedding": rotary_embedding.TRIAL,
    "reshape_and_cache": reshape_and_cache.TRIAL,
    "paged_attention": paged_attention.TRIAL,
    "attention": attention.TRIAL,
}
