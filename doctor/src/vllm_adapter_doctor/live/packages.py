"""Python packages, vLLM and variables that matter to a device; nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vllm_adapter.discovery.distributions import read_headers, read_points
from vllm_adapter.hostfacts.facts import VllmFacts
from vllm_adapter.hostfacts.known_vendors import variable_heads
from vllm_adapter_doctor.report.secrets import hidden, is_secret

_NAMES: Final = frozenset(
    """
    aiter amd-aiter amdsmi bitsandbytes compressed-tensors deep-ep deep-gemm flash-attn
    flashinfer-cubin flashinfer-python habana-torch-plugin intel-extension-for-pytorch kernels
    mooncake-transfer-engine neuronx-cc numpy nvidia-ml-py oneccl oneccl-bind-pt optimum-habana
    pynvml pytorch-triton pytorch-triton-rocm pytorch-triton-xpu pyzmq ray safetensors sgl-kernel
    sglang tokenizers torch torch-mlu torch-musa torch-neuronx torch-npu torch-xla torchaudio
    torchvision transformers triton triton-ascend triton-rocm triton-xpu vllm xformers xgrammar
    """.split()
)
_PREFIXES: Final = ("vllm-", "nvidia-nccl", "nvidia-cuda-runtime", "nvidia-cudnn")
_GROUPS: Final = ("vllm.platform_plugins", "vllm.general_plugins")
_VARIABLES: Final = re.compile(
    r"LD_LIBRARY_PATH|LD_PRELOAD|[A-Z]\w*_VISIBLE_(?:DEVICES|MODULES|CARDS)|GPU_DEVICE_ORDINAL"
    r"|PYTHONPATH|PYTHONHASHSEED|NO_COLOR|MKL_NUM_THREADS|TORCH(?:DYNAMO|INDUCTOR)_\w+"
    r"|RAY_EXPERIMENTAL_NOSET_\w+|(?:VLLM|VA|AMD|CCL|GLOO|GOMP|HIP|HSA|KMP|MIOPEN|MLU|NPU|OMP"
    r"|PYTORCH|TORCH|TPU|TRITON|UCX|XPU|ZE|ZES)_\w+"
)
"""Variables that are no vendor's own, and those whose heads are short."""
_LONG: Final = len("CUDA_")
"""Variables with a shorter head of a vendor's may be anybody's, and are not printed for it."""
_REQUIRED: Final = "NVIDIA_REQUIRE_"
"""What a container image asks of its host is no setting."""
_BYTES: Final = 4096
"""A value longer than this is cut: it is a list of paths, or no setting at all."""


def read_packages() -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str, str], ...]]:
    """Versions of the packages that matter, by normalised name, and vLLM's plug-ins.

    A package found twice on the path counts once, as Python's import takes the first.
    """
    from importlib_metadata import distributions

    packages: dict[str, str] = {}
    plugins: set[tuple[str, str, str]] = set()
    seen: set[str] = set()
    for distribution in distributions():
        name, version = _identity(distribution)
        if name in seen:
            continue
        seen.add(name)
        if version and (name in _NAMES or name.startswith(_PREFIXES)):
            packages[name] = version
        plugins.update(_plugins(distribution))
    return tuple(sorted(packages.items())), tuple(sorted(plugins))


def read_vllm(plugins: tuple[tuple[str, str, str], ...]) -> VllmFacts | None:
    """The installed vLLM; None where there is none. `platform` stays unknown: it must be asked."""
    from vllm_adapter.broker.vllm_install import find_vllm

    try:
        found = find_vllm()
    except (ImportError, ValueError):  # a stand-in in sys.modules that has no spec
        return None
    if found is None:
        return None
    return VllmFacts(found.version, found.distribution, found.build, plugins)


def read_environment(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables that matter to a device, sorted; secrets left out."""
    return tuple(
        (name, hidden(value[:_BYTES]))
        for name, value in sorted(environ.items())
        if _is_ours(name) and not is_secret(name)
    )


def _is_ours(name: str) -> bool:
    heads = tuple(head for head in variable_heads() if len(head) >= _LONG)
    vendors = name.startswith(heads) and not name.startswith(_REQUIRED)
    return vendors or _VARIABLES.fullmatch(name) is not None


def _identity(distribution: Any) -> tuple[str, str]:
    """Name and version by the folder of the metadata, which spares the parsing of most."""
    folder = getattr(getattr(distribution, "_path", None), "name", "")
    stem, _, kind = folder.rpartition(".")
    name, _, version = stem.partition("-")
    if kind != "dist-info" or not version:
        headers = read_headers(distribution)
        name, version = (headers.get(key, [""])[0] for key in ("name", "version"))
        if not name:  # nobody can say what this folder is
            return folder, ""
    return re.sub(r"[-_.]+", "-", name).lower(), version


def _plugins(distribution: Any) -> set[tuple[str, str, str]]:
    try:
        return {(group, *point) for group in _GROUPS for point in read_points(distribution, group)}
    except OSError:  # unreadable metadata of one package hides no other
        return set()
