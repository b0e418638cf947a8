"""Which attention of ours serves what vLLM's selector asks for, before a layer is built."""

from __future__ import annotations

from typing import Any

from vllm_adapter.engine.integrations.vllm import policy, release_differences
from vllm_adapter.engine.ops.spec import Facts
from vllm_adapter.errors import UnsupportedCase

NAME = "CUSTOM"
"""The member of vLLM's AttentionBackendEnum that out-of-tree backends have."""
_HERE = "vllm_adapter.engine.integrations.vllm"
DECODER = f"{_HERE}.attention.PortableBackend"
ENCODER = f"{_HERE}.encoder.EncoderBackend"


def backend_for(selected: Any, wanted: Any) -> str | None:
    """Our backend's dotted name, if an adapter binds its operators; else says once why not.

    vLLM does not say here which window, soft cap or block size a layer has: they are taken from
    the model's configuration, and the layer binds again with what it is then given.

    Raises:
        UnsupportedCase: it does not, and VA_FALLBACK=error.
    """
    try:
        return required_backend(selected, wanted)
    except UnsupportedCase as refused:
        policy.report_fallback("attention", refused)
        return None


def required_backend(selected: Any, wanted: Any) -> str:
    """As `backend_for`, where vLLM has no other.

    Raises:
        UnsupportedCase: nothing of ours binds.
    """
    _refuse(selected, wanted)
    if wanted.attn_type == "encoder_only":
        policy.require_adapter_kernel("attention", _encoder_facts(wanted))
        return ENCODER
    attend = _facts(wanted)
    policy.require_adapter_kernel("reshape_and_cache", write_facts(attend))
    policy.require_adapter_kernel("paged_attention", attend)
    return DECODER


def _refuse(selected: Any, wanted: Any) -> None:
    hint = "VA_FALLBACK=warn leaves it to vLLM"
    if selected is not None and selected.name != NAME:
        raise UnsupportedCase(
            f"the attention backend {selected.name} was asked for",
            hint=f"ask for none, or for {NAME}",
        )
    if wanted.attn_type not in ("decoder", "encoder_only"):
        raise UnsupportedCase(f"no operator is attention of type {wanted.attn_type}", hint=hint)
    features = release_differences.unsupported_features(wanted)
    if features:
        raise UnsupportedCase(f"no attention of ours has {', '.join(features)}", hint=hint)


def _facts(wanted: Any) -> Facts:
    from vllm.config import get_current_vllm_config

    config = get_current_vllm_config()
    window = release_differences.window_of(config) if wanted.has_sliding_window else 0
    if window is None:
        raise UnsupportedCase(
            "the model's configuration does not say how long its sliding window is",
            hint="VA_FALLBACK=warn leaves it to vLLM",
        )
    return attend_facts(
        dtype=str(wanted.dtype).removeprefix("torch."),
        head_size=wanted.head_size,
        block_size=wanted.block_size or config.cache_config.block_size,
        gqa_ratio=_gqa_ratio(config),
        window=window,
        soft_cap=release_differences.soft_cap_of(config),
        kv_cache_dtype=wanted.kv_cache_dtype,
    )


def attend_facts(
    *,
    dtype: str,
    head_size: int,
    block_size: int,
    gqa_ratio: int,
    window: int,
    soft_cap: float,
    kv_cache_dtype: str | None,
) -> Facts:
    """The facts of paged_attention, from vLLM's words.

    Raises:
        UnsupportedCase: a cache of another dtype, whose scales no operator of ours takes.
    """
    if kv_cache_dtype not in (None, "auto", dtype):
        raise UnsupportedCase(
            f"a KV cache of {kv_cache_dtype} has scales, which paged_attention does not take",
            hint="use --kv-cache-dtype auto",
        )
    return {
        "dtype": dtype,
        "head_size": head_size,
        "block_size": block_size,
        "gqa_ratio": gqa_ratio,
        "window": window,
        "soft_cap": soft_cap,
        "kv_dtype": "auto",
    }


def write_facts(attend: Facts) -> Facts:
    """The facts of reshape_and_cache for the same layer."""
    return {name: attend[name] for name in ("dtype", "head_size", "block_size", "kv_dtype")}


def _encoder_facts(wanted: Any) -> Facts:
    from vllm.config import get_current_vllm_config

    config = get_current_vllm_config()
    if release_differences.has_local_layers(config):
        raise UnsupportedCase(
            "the model's encoder has layers with a window to both sides",
            hint="VA_FALLBACK=warn leaves it to vLLM",
        )
    return encoder_facts(
        dtype=str(wanted.dtype).removeprefix("torch."),
        head_size=wanted.head_size,
        gqa_ratio=_gqa_ratio(config),
        soft_cap=release_differences.soft_cap_of(config),
    )


def encoder_facts(*, dtype: str, head_size: int, gqa_ratio: int, soft_cap: float) -> Facts:
    """The facts of attention without a cache, where every token sees every other."""
    return {
        "dtype": dtype,
        "head_size": head_size,
        "gqa_ratio": gqa_ratio,
        "causal": False,
        "window": 0,
        "soft_cap": soft_cap,
    }


def _gqa_ratio(config: Any) -> int:
    model, parallel = config.model_config, config.parallel_config
    ratio: int = model.get_num_attention_heads(parallel) // model.get_num_kv_heads(parallel)
    return ratio
