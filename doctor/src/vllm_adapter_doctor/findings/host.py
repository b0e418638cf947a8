"""One machine under examination, as rules look at it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from vllm_adapter.contract.finding import Evidence, Finding
from vllm_adapter.hostfacts.facts import HostFacts, Line
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.box_vendor import BoxVendor, box_vendor, other_runtime, traced
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
        if self.other_runtime:
            return vendor == self.other_runtime
        return self.vendor is None or vendor == self.vendor.name or vendor in self._traced

    @cached_property
    def _traced(self) -> Mapping[str, int]:
        return traced(self.facts.report)

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
        return other_runtime(self.facts)

    @cached_property
    def vendor(self) -> BoxVendor | None:
        """Whose box it is, from all evidence; None where nothing tells, or several are in it."""
        return box_vendor(self.facts)

    @cached_property
    def places(self) -> Mapping[str, str]:
        """What every sentence of a rule may name."""
        torch = self.facts.torch
        return {
            "box_device": described(self.facts.accelerators),
            "box_torch": (torch and torch.version) or "",
            "box_runtime": self.other_runtime or "",
            "box_vendor": self.vendor.name if self.vendor else "",
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


def quoted(line: Line) -> Evidence:
    """A line of the report as evidence."""
    return Evidence(line.text.strip(), f"line {line.number}")
