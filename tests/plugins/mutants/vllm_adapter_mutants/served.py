"""Faults that show under vLLM alone: L0 to L3 pass."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from vllm_adapter import generic
from vllm_adapter_mutants.attention import last_key_dropped


def last_key_dropped_under_vllm(*args: Any) -> torch.Tensor:
    """Right everywhere else."""
    if "vllm" in sys.modules:
        return last_key_dropped(*args)
    return generic.paged_attention(*args)


def not_under_vllm(facts: Mapping[str, Any]) -> str | None:
    """A reason to refuse every case, where vLLM asks."""
    return "it has a headache" if "vllm" in sys.modules else None
