"""Names of Python packages: how they are normalised, and which matter to a device."""

from __future__ import annotations

import re
from typing import Final

_BUILDS: Final = re.compile(
    r"\+(?:.*\.)?(cpu|rocm|xpu|tpu|hpu|gaudi|neuron|npu|maca|empty|cu(?=\d))"
)

INTERESTING: Final = frozenset(
    """torch torch-npu torch-xla torch-mlu torch-musa torch-gcu torch-neuronx torchao torchaudio
    torchvision pytorch-triton pytorch-triton-rocm pytorch-triton-xpu triton triton-xpu
    triton-ascend vllm vllm-ascend vllm-gaudi vllm-metax vllm-musa vllm-kunlun vllm-neuron
    vllm-tpu vllm-spyre vllm-metal vllm-rbln vllm-flash-attn sglang sgl-kernel sglang-kernel
    flashinfer flashinfer-python flashinfer-cubin flashinfer-jit-cache flash-attn flash-attn-3
    xformers deepspeed transformers tokenizers accelerate numpy ray xgrammar aiter amd-aiter amdsmi
    pynvml nvidia-ml-py intel-extension-for-pytorch oneccl-bind-pt oneccl triton-kernels
    habana-torch-plugin habana-torch-dataloader habana-gpu-migration optimum-habana neuronx-cc
    libneuronxla neuronx-distributed jax jaxlib libtpu libtpu-nightly tpu-info cann mindie-turbo
    deep-ep deep-gemm compressed-tensors bitsandbytes nixl lmcache mooncake-transfer-engine
    apex""".split()
)
"""Normalised names that are believed outside a list that says it is one."""


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
