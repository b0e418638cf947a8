"""What differs between vLLM's releases, asked of vLLM's own objects and never of a version."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Final

_ASKED: Final = frozenset(
    ("head_size", "dtype", "kv_cache_dtype", "block_size", "attn_type", "has_sliding_window")
)
"""What our attention answers for; whatever else a selector wants is a feature it has not."""


def unsupported_features(wanted: Any) -> list[str]:
    """Names of the features that an AttentionSelectorConfig asks for beyond those we know.

    It grows nearly every release, so that a feature of a later one counts too.
    """
    # upstream: vllm@0.32 v1/attention/selector.py:20
    return [name for name, value in wanted._asdict().items() if value and name not in _ASKED]


def context_lens(common: Any) -> list[int]:
    """Lengths of a batch's sequences, on the host, from a CommonAttentionMetadata."""
    on_host = getattr(common, "_seq_lens_cpu", None)  # upstream: vllm@0.31, gone in 0.32
    if on_host is None:
        on_host = common.seq_lens
    found: list[int] = on_host.tolist()
    return found


def window_of(vllm_config: Any) -> int | None:
    """The sliding window that a model's windowed layers share; None if it is not known."""
    found = getattr(vllm_config.model_config.hf_text_config, "sliding_window", None)
    return found if isinstance(found, int) and found > 0 else None


def has_local_layers(vllm_config: Any) -> bool:
    """Whether a model has windowed layers, by the words that encoders use for it."""
    text = vllm_config.model_config.hf_text_config
    words = ("sliding_window", "local_attention", "local_attention_window")
    return any(getattr(text, word, None) for word in words)


def soft_cap_of(vllm_config: Any) -> float:
    """The soft cap of a model's attention scores; 0.0 is off."""
    text = vllm_config.model_config.hf_text_config
    return float(getattr(text, "attn_logit_softcapping", None) or 0.0)


def gated_width(vllm_config: Any) -> int | None:
    """The width of a gated layer on one device; None where layers differ or have none."""
    text = getattr(vllm_config.model_config, "hf_text_config", None)
    width = getattr(text, "intermediate_size", None)
    if not isinstance(width, int):
        return None
    shards: int = vllm_config.parallel_config.tensor_parallel_size
    return width // shards


def has_experts(model_config: Any) -> bool:
    """Whether a model is a mixture of experts."""
    return bool(getattr(model_config, "is_moe", False))


class _BothKeys:
    """A user's own object for vLLM's `additional_config`, with our part of the key beside."""

    def __init__(self, theirs: Any, ours: str) -> None:
        self._theirs, self._ours = theirs, ours

    def compute_hash(self) -> str:
        """Changes with either."""
        return f"{self._theirs.compute_hash()}-{self._ours}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def add_to_compile_key(vllm_config: Any, fingerprint: str) -> None:
    """Has vLLM keep graphs that were compiled with other operators of ours apart.

    # upstream: vllm@0.32 config/vllm.py:549, compilation/backends.py:1041, caching.py:581
    """
    given = vllm_config.additional_config
    if given is None or isinstance(given, dict):
        vllm_config.additional_config = {**(given or {}), "vllm_adapter": fingerprint}
    elif not isinstance(given, _BothKeys):
        vllm_config.additional_config = _BothKeys(given, fingerprint)


def registries() -> list[ModuleType]:
    """The modules that have a CustomOp with a table of replacements of its own."""
    names = ("vllm.model_executor.custom_op", "vllm.model_executor.hw_agnostic.custom_op")
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError as missing:  # hw_agnostic: from 0.28
            if missing.name is None or not name.startswith(missing.name):
                raise
    return found
