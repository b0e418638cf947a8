"""Host facts about software: the torch build, vLLM, and the lines of a pasted report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What the installed torch was built for. `local` is the tag after +, such as "cu130".

    `archs` are the device codes that it holds ("sm_90", "gfx942"), where they were reported.
    `available` is what torch itself said of an accelerator; None where nobody asked it, as where
    a plug-in brings a device that `torch.cuda` does not know of.
    `visible_devices` is how many it saw.
    """

    version: str | None = None
    local: str | None = None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    archs: tuple[str, ...] = ()
    available: bool | None = None
    visible_devices: int | None = None


@dataclass(frozen=True, slots=True)
class VllmFacts:
    """The installed vLLM. `build` is the device its wheel is for: "cuda", "rocm", "cpu", ...

    `plugins` are (group, name, value) of its entry points; `platform` is the one that it chose.
    """

    version: str | None = None
    distribution: str | None = None
    build: str | None = None
    plugins: tuple[tuple[str, str, str], ...] = ()
    platform: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a pasted report. `number` counts from 1, in the text as it was given."""

    number: int
    text: str
