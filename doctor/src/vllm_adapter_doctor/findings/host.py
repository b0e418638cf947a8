"""One machine under examination, as rules look at it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from vllm_adapter.contract.finding import Evidence, Finding
from vllm_adapter.hostfacts.facts import HostFacts, Line
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.vendor_files import once, sections
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.device_names import described
from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.findings.searched import ReportSearch, compiled

MAX_EVIDENCE: Final = 5


@dataclass
class ExaminedHost:
    """One machine under examination: its facts, and whether they are of this machine now.

    `said` is what other rules found, for those that come last.
    """

    facts: HostFacts
    live: bool = False
    said: tuple[Finding, ...] = ()

    @cached_property
    def searched(self) -> ReportSearch:
        """The report, made ready for many searches."""
        return ReportSearch(self.facts.report)

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices, each once, as `vllm-adapter devices` lists them."""
        return inventory(self.facts).devices

    @cached_property
    def vendors(self) -> frozenset[str]:
        """Who made the accelerators that are here, those of the processor left out."""
        return frozenset(one.vendor for one in self.facts.accelerators if not one.integrated)

    @cached_property
    def builds(self) -> frozenset[str]:
        """What the installed torch is built for, as far as it is reported: "cuda", "cpu", ..."""
        torch = self.facts.torch
        if torch is None:
            return frozenset()
        reported = {
            "cuda": torch.cuda,
            "rocm": torch.hip,
            "xpu": torch.xpu,
            "cpu": (torch.local or "").startswith("cpu"),
        }
        return frozenset(name for name, there in reported.items() if there)

    def may_be_vendor(self, vendor: str) -> bool:
        """Not known to be for another vendor: only what is known makes it false."""
        if self.vendors:
            return vendor in self.vendors
        return self.other_runtime in (None, vendor)

    def runs_under(self, name: str) -> bool:
        """Whether the system is known to run there: "wsl", "container", "android", ..."""
        return bool({name, *_KINDS.get(name, ())} & set(self.facts.os.environment))

    @property
    def wsl(self) -> bool:
        """Whether this Linux runs in Windows."""
        return self.runs_under("wsl")

    @property
    def container(self) -> bool:
        """Whether this is known to be inside a container."""
        return self.runs_under("container")

    @cached_property
    def other_runtime(self) -> str | None:
        """The adapter name of a runtime other than CUDA that this torch or its plug-in is for."""
        packages = dict(self.facts.packages)
        for name, adapter in companions().items():
            if name in packages:
                return adapter
        for adapter, raw in sections("torch"):
            if "local" in raw and self._torch_is_for(adapter, raw["local"]):
                return adapter
            for name, tag in raw.get("builds_of", {}).items():
                if tag in packages.get(name, ""):  # its other build is for the CPU
                    return adapter
        return None

    def _torch_is_for(self, vendor: str, tag: str) -> bool:
        """Whether torch was built for this vendor's runtime, or its version has this tag."""
        torch, build = self.facts.torch, VENDORS[vendor].build
        if torch is None:
            return False
        return bool(getattr(torch, build or "", None)) or (torch.local or "").startswith(tag)

    @cached_property
    def places(self) -> Mapping[str, str]:
        """What every sentence of a rule may name."""
        torch = self.facts.torch
        return {
            "box_device": described(self.facts.accelerators),
            "box_torch": (torch and torch.version) or "",
            "box_runtime": self.other_runtime or "",
            "box_vendor": min(self.vendors, default=""),
        }

    def lines(self, pattern: str) -> Iterator[tuple[Line, re.Match[str]]]:
        """Every line of the report in which the pattern is found."""
        wanted = compiled(pattern)
        for line in self.facts.report:
            found = wanted.search(line.text)
            if found:
                yield line, found

    def program_lines(
        self, pattern: str, words: Iterable[str] = ()
    ) -> Iterator[tuple[Line, re.Match[str]]]:
        """As `lines`, of what somebody's program said: no source code, no advice, no level DEBUG.

        With `words` (in small letters), only lines with one of them are looked at.
        """
        for lines, found in self.searched.program_lines(pattern, tuple(words)):
            yield lines[0], found

    def has_line(self, pattern: str) -> bool:
        """Whether the report has such a line."""
        return next(self.lines(pattern), None) is not None

    def evidence(self, pattern: str, otherwise: str = "") -> tuple[Evidence, ...]:
        """The lines of the report that hold the pattern; else the sentence, as a host fact."""
        found = tuple(quoted(line) for line, _ in self.lines(pattern))[:MAX_EVIDENCE]
        if found or not otherwise:
            return found
        return (Evidence(otherwise, "host facts"),)


_KINDS: Final = {"wsl": ("wsl1", "wsl2"), "container": ("docker", "podman", "kubernetes")}
"""What facts call the kinds of a place where a system runs."""


@once
def companions() -> dict[str, str]:
    """Packages that bring a device to a torch which knows none: the adapter's name by package."""
    return {name: vendor for vendor, names in sections("torch", "packages") for name in names}


def quoted(line: Line) -> Evidence:
    """A line of the report as evidence."""
    return Evidence(line.text.strip(), f"line {line.number}")
