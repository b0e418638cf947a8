"""Host facts about software: the torch build, vLLM, and the lines of a pasted report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What the installed torch was built for."""

    version: str | None = None
    """torch's version with its local tag."""
    local: str | None = None
    """The tag after +, such as "cu130"."""
    cuda: str | None = None
    """The CUDA version that it was built with."""
    hip: str | None = None
    """The HIP version that it was built with."""
    xpu: str | None = None
    """The SYCL compiler's version that it was built with."""
    archs: tuple[str, ...] = ()
    """The device codes that it holds ("sm_90", "gfx942"), where they were reported."""
    available: bool | None = None
    """What torch itself said of an accelerator; null where nobody asked it, as where a plug-in
    brings a device that `torch.cuda` does not know of."""
    visible_devices: int | None = None
    """How many devices torch saw."""


@dataclass(frozen=True, slots=True)
class VllmFacts:
    """The installed vLLM."""

    version: str | None = None
    """vLLM's version."""
    distribution: str | None = None
    """The distribution that it was installed from."""
    build: str | None = None
    """The device its wheel is for: "cuda", "rocm", "cpu", ..."""
    plugins: tuple[tuple[str, str, str], ...] = ()
    """(group, name, value) of its entry points."""
    platform: str | None = None
    """The platform plug-in that it chose."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a pasted report."""

    number: int
    """The line's number from 1, in the text as it was given."""
    text: str
    """The line, cleaned."""
