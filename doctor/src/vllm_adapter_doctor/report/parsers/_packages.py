"""Names of Python packages: how they are normalised, and which matter to a device."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.known_vendors import own_packages

_BUILDS: Final = re.compile(
    r"\+(?:.*\.)?(cpu|rocm|xpu|tpu|hpu|gaudi|neuron|npu|maca|empty|cu(?=\d))"
)

_COMMON: Final = frozenset(
    """torch torchao torchaudio torchvision pytorch-triton triton vllm vllm-spyre vllm-metal
    vllm-flash-attn sglang sgl-kernel sglang-kernel flashinfer flashinfer-python
    flashinfer-cubin flashinfer-jit-cache flash-attn flash-attn-3 xformers deepspeed
    transformers tokenizers accelerate numpy ray xgrammar triton-kernels deep-ep deep-gemm
    compressed-tensors bitsandbytes nixl lmcache mooncake-transfer-engine apex""".split()
)


def is_relevant_package(name: str) -> bool:
    """Whether a package of this normalised name is believed outside a list that says it is one."""
    return name in _COMMON or name in own_packages()


def normalised(name: str) -> str:
    """The name as package indexes compare it: lower case, one hyphen for each run of . _ -."""
    return re.sub(r"[-_.]+", "-", name).lower()


def vllm_build(version: str | None) -> str | None:
    """The device that a vLLM of this version was built for; None where its tag does not say.

    A version without a tag is CUDA's from the package index, and anything where it was built from
    source.
    """
    found = _BUILDS.search(version or "")
    return {"cu": "cuda", "gaudi": "hpu"}.get(found[1], found[1]) if found else None
