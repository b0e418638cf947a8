"""Our providers of vLLM's IR operators rms_norm and fused_add_rms_norm."""

from __future__ import annotations

from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.vllm import policy

PROVIDER: Final = "vllm_adapter"
"""In vLLM's lists of priority. Which adapter runs a call is settled by its dtype and width."""
OPERATORS: Final = ("rms_norm", "fused_add_rms_norm")

_norm = policy.ByWidth("rms_norm")
_fused = policy.ByWidth("fused_add_rms_norm")


def bound_operators(model_config: Any) -> list[str]:
    """The operators that an adapter binds for the model's hidden size.

    Raises:
        UnsupportedCase: one is not bound, and VA_FALLBACK=error.
    """
    dtype, width = model_config.dtype, model_config.get_hidden_size()
    return [table.op for table in (_norm, _fused) if table.find(dtype, width) is not None]


def bind_early(dtype: torch.dtype, width: int) -> None:
    """Binds a layer's norm before it is called.

    Raises:
        UnsupportedCase: it is not bound, and VA_FALLBACK=error.
    """
    _norm.find(dtype, width)


def provide() -> None:
    """Registers both with vLLM, once a process."""
    from vllm import ir

    if not any(policy.concerns(op) for op in OPERATORS):
        return
    if PROVIDER not in ir.ops.rms_norm.impls:
        ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_serves_norm)(_run_norm)
        ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=_serves_fused)(_run_fused)


def _served(
    table: policy.ByWidth, x: torch.Tensor, weight: torch.Tensor | None, part: int | None
) -> bool:
    # upstream: vllm@0.32 ir/ops/layernorm.py: a weight of another dtype changes what is rounded
    if weight is None or part is not None or weight.dtype != x.dtype:
        return False
    return table.find(x.dtype, x.shape[-1]) is not None


def _serves_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return _served(_norm, x, weight, variance_size)


def _serves_fused(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return _served(_fused, x, weight, variance_size)


def _run_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    run = _norm.find(x.dtype, x.shape[-1])
    assert run is not None, "asked for only where _serves_norm said so"
    result: torch.Tensor = run(x, weight, epsilon)
    return result


def _run_fused(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    run = _fused.find(x.dtype, x.shape[-1])
    assert run is not None, "asked for only where _serves_fused said so"
    normed, total = run(x, x_residual, weight, epsilon)
    return normed, total
