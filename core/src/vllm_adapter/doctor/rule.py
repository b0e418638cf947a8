"""What a rule of the doctor is: it looks at one box and says what is wrong, with evidence.

A rule says nothing where it is not sure. Two shapes: a `Rule` around a function of the box, and
a `TextRule` (`doctor.text_rule`), for a failure that has a text of its own. Each module of
`doctor.rules` has a tuple `RULES` of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from vllm_adapter.codes import CODES
from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.searched import Searched, compiled
from vllm_adapter.host.facts import HostFacts, Line
from vllm_adapter.known_vendors import VENDORS
from vllm_adapter.vendor_files import once, sections

MAX_EVIDENCE: Final = 5


@dataclass
class Box:
    """One machine under examination: its facts, and whether they are of this machine now."""

    facts: HostFacts
    live: bool = False

    @cached_property
    def searched(self) -> Searched:
        """The report, made ready for many searches."""
        return Searched(self.facts.report)

    @cached_property
    def vendors(self) -> frozenset[str]:
        """Who made the accelerators that are here, those of the processor left out."""
        return frozenset(one.vendor for one in self.facts.accelerators if not one.integrated)

    @property
    def wsl(self) -> bool:
        """Whether this Linux runs in Windows."""
        return bool({"wsl1", "wsl2"} & set(self.facts.os.environment))

    @property
    def container(self) -> bool:
        """Whether this is known to be inside a container."""
        inside = {"container", "docker", "podman", "kubernetes"}
        return bool(inside & set(self.facts.os.environment))

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

    def lines(self, pattern: str) -> Iterator[tuple[Line, re.Match[str]]]:
        """Every line of the report in which the pattern is found."""
        wanted = compiled(pattern)
        for line in self.facts.report:
            found = wanted.search(line.text)
            if found:
                yield line, found

    def told(
        self, pattern: str, words: Iterable[str] = ()
    ) -> Iterator[tuple[Line, re.Match[str]]]:
        """As `lines`, of what somebody's program said: no source code, no advice, no level DEBUG.

        With `words` (in small letters), only lines with one of them are looked at.
        """
        for lines, found in self.searched.told(pattern, tuple(words)):
            yield lines[0], found

    def says(self, pattern: str) -> bool:
        """Whether the report has such a line."""
        return next(self.lines(pattern), None) is not None

    def evidence(self, pattern: str, otherwise: str = "") -> tuple[Evidence, ...]:
        """The lines of the report that hold the pattern; else the sentence, as a host fact."""
        found = tuple(quoted(line) for line, _ in self.lines(pattern))[:MAX_EVIDENCE]
        if found or not otherwise:
            return found
        return (Evidence(otherwise, "host facts"),)


@once
def companions() -> dict[str, str]:
    """Packages that bring a device to a torch which knows none: the adapter's name by package."""
    return {name: vendor for vendor, names in sections("torch", "packages") for name in names}


def quoted(line: Line) -> Evidence:
    """A line of the report as evidence."""
    return Evidence(line.text.strip(), f"line {line.number}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that looks at facts: `check` yields findings, of this code."""

    code: str
    check: Callable[[Box], Iterable[Finding]]


def finding(
    code: str,
    evidence: Iterable[Evidence],
    cause: str,
    action: str = "",
    severity: Severity = Severity.ERROR,
) -> Finding:
    """A finding; without an action of its own it has the register's."""
    return Finding(code, severity, tuple(evidence), cause, action or CODES[code].action)
