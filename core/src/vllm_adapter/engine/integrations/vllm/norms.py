"""Binds the norm of each of vLLM's layers while it is built, so that a refusal is no late one.

The call itself goes through vLLM's IR (`ir.py`), which says a width and a dtype only then.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from vllm.model_executor import custom_op
from vllm.model_executor.layers import layernorm

from vllm_adapter.engine.integrations.vllm import ir, policy
from vllm_adapter.engine.integrations.vllm.replaced import replace as put
from vllm_adapter.engine.integrations.vllm.replaced import subclass
from vllm_adapter.errors import UnsupportedCase

_CLASSES: Final = ("RMSNorm", "GemmaRMSNorm")
_HINT: Final = "VA_FALLBACK=warn leaves it to vLLM"


def replace() -> None:
    """Has vLLM make our classes, if the policy concerns a norm."""
    if not any(policy.concerns(op) for op in ir.OPERATORS):
        return
    for name in _CLASSES:
        base = getattr(layernorm, name, None)
        if base is not None:
            put(custom_op, "CustomOp", base, subclass(base, {"__init__": _init_of(base)}))


def _init_of(base: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        _foresee(self)

    return __init__


def _foresee(norm: Any) -> None:
    # upstream: vllm@0.32 model_loader: the default dtype is the model's while it is built
    dtype = torch.get_default_dtype()
    reason = _reason(norm, dtype)
    if reason is not None:
        policy.report_fallback("rms_norm", UnsupportedCase(reason, hint=_HINT))
    else:
        ir.bind_early(dtype, norm.weight.shape[-1])


def _reason(norm: Any, dtype: torch.dtype) -> str | None:
    """Why the operator cannot be what a norm is, in no dtype and width; None if it can."""
    if not getattr(norm, "has_weight", True):
        return "rms_norm has a weight, and a layer's norm has none"
    if getattr(norm, "variance_size_override", None) is not None:
        return "rms_norm takes the mean over all of a row, and a layer's norm over a part"
    # upstream: vllm@0.32 layernorm.py: Gemma's is multiplied in float32, before it is rounded
    is_gemma = isinstance(norm, getattr(layernorm, "GemmaRMSNorm", ()))
    weight = torch.float32 if is_gemma else norm.weight.dtype
    if weight != dtype:
        theirs, rows = (str(one).removeprefix("torch.") for one in (weight, dtype))
        return f"rms_norm takes a weight of the rows' dtype, and a layer has {theirs} for {rows}"
    return None
