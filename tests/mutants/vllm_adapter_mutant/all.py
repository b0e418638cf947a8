"""Imports every module that has kernels, so that the list is whole."""

from vllm_adapter_mutant import (  # noqa: F401
    builds,
    builds_attention,
    caches,
    encoders,
    gates,
    linears,
    norms,
    paged,
    paged_sizes,
    rotary,
    threads,
)
from vllm_adapter_mutant.zoo import KERNELS

__all__ = ["KERNELS"]
