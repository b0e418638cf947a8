"""Structured output: the grammar's mask is made on the host, and laid on the device's logits."""

from __future__ import annotations

from typing import Any, Final

import torch
from vllm.v1.worker import gpu_model_runner

_HAS_KERNEL: Final = ("cpu", "cuda")
"""Devices for which xgrammar brings a kernel; for others it compiles one by inductor."""
_theirs: Any = gpu_model_runner.apply_grammar_bitmask


def apply_grammar_bitmask(
    scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: torch.Tensor
) -> None:
    """Makes the logits of tokens that no grammar allows -inf; logits: [rows, vocabulary]."""
    if logits.device.type in _HAS_KERNEL:
        _theirs(scheduler_output, grammar_output, input_batch, logits)
        return
    mask = torch.zeros(logits.shape, dtype=torch.float32)
    _theirs(scheduler_output, grammar_output, input_batch, mask)
    logits += mask.to(logits.dtype).to(logits.device)


def replace() -> None:
    """Puts ours where vLLM's runner looks it up."""
    # upstream: vllm@0.32 v1/worker/gpu_model_runner.py:4335
    gpu_model_runner.apply_grammar_bitmask = apply_grammar_bitmask
