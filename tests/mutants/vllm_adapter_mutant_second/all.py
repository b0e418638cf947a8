"""Imports every module that has kernels, so that the list is whole."""

from vllm_adapter_mutant_second import (  # noqa: F401
    builds,
    encoders,
    gates,
    linears,
    norms,
    paged,
    tables,
)
from vllm_adapter_mutant_second.zoo import KERNELS

__all__ = ["KERNELS"]
