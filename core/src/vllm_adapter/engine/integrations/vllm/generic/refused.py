"""What of vLLM this shape does not serve yet, said before a weight is read.

Each row has a test, and its line in docs/vllm.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vllm_adapter.engine.integrations.vllm.generic.served import ServedDevice
from vllm_adapter.errors import UnsupportedCase

Finding = str | None
"""What a configuration asks for, in words; None where it does not."""


def _speculative(config: Any) -> Finding:
    asked = config.speculative_config is not None
    return "speculative decoding" if asked else None


def _mla(config: Any) -> Finding:
    model = config.model_config
    asked = model is not None and getattr(model, "use_mla", False)
    return "multi-head latent attention (MLA)" if asked else None


def _multimodal(config: Any) -> Finding:
    model = config.model_config
    asked = model is not None and getattr(model, "is_multimodal_model", False)
    return "a model that takes images, sound or video" if asked else None


def _state(config: Any) -> Finding:
    model = config.model_config
    asked = model is not None and getattr(model, "has_inner_state", False)
    return "a model with recurrent state (Mamba and its kind)" if asked else None


def _contexts(config: Any) -> Finding:
    parallel = config.parallel_config
    words = ("decode_context_parallel_size", "prefill_context_parallel_size")
    asked = any(getattr(parallel, word, 1) > 1 for word in words)
    return "one sequence over several devices (context parallel)" if asked else None


def _sleep(config: Any) -> Finding:
    model = config.model_config
    return "sleep mode" if model is not None and model.enable_sleep_mode else None


_ROWS: Final[tuple[tuple[Callable[[Any], Finding], str], ...]] = (
    (_speculative, "leave --speculative-config out"),
    (_mla, "serve a model with plain attention"),
    (_multimodal, "serve a model of text alone"),
    (_state, "serve a model of attention alone"),
    (_contexts, "use --tensor-parallel-size"),
    (_sleep, "leave --enable-sleep-mode out"),
)


def refuse(device: ServedDevice, config: Any) -> None:
    """Raises UnsupportedCase for the first thing asked for that this shape does not serve."""
    for asks, hint in _ROWS:
        found = asks(config)
        if found is not None:
            raise UnsupportedCase(f"{found} is not served on {device.torch_type} yet", hint=hint)
    pipeline = config.parallel_config.pipeline_parallel_size
    if pipeline > 1 and not device.is_host and device.dist_backend == "gloo":
        raise UnsupportedCase(
            f"pipeline parallel needs a backend of torch.distributed for {device.torch_type}, "
            "and its descriptor names none (/vllm/dist_backend)",
            hint="use --tensor-parallel-size, which goes by way of the host",
        )
