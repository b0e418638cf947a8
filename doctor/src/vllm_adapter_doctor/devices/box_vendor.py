"""Whose accelerators a box is for: decided here once, from all evidence, for all who give advice.

Devices say it first, then the build of torch and what is installed beside it, then drivers, then
what is written in the text. A vendor whose face others wear is believed last.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from typing import Final, NamedTuple

from vllm_adapter.hostfacts.facts import HostFacts, Line
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.hostfacts.vendor_files import once, sections

_PROBE: Final = re.compile(
    r"\bDEBUG\b|\bis not available because\b|when checking \w+ platform|Could not collect"
    r"|\b(?:N/A|Disabled|Not Set|None|not found)\b"
)
"""Lines that name a vendor whose software is not there."""
_NODES: Final = re.compile(
    r"/dev/(?!shm|dxg)\w+|modprobe|\bdkms\b|\bkernel (?:driver|module)|NVIDIA_DRIVER_CAPABILITIES"
    r"|--gpus all|--group-add|usermod|install the driver|nvidia-fabricmanager"
)
_TRACES: Final = 200
"""Places of one vendor that are looked at, until one is found that is no probe's."""
_ENDS: Final = 2000
"""Lines at the start and at the end of a long text that are looked at."""
_PLATFORMS: Final = {"npu": "ascend", "hpu": "gaudi"}


class BoxVendor(NamedTuple):
    """The adapter's name of a vendor; whether a device of it is listed; how that is known."""

    name: str
    device: bool
    evidence: str


def box_vendor(facts: HostFacts) -> BoxVendor | None:
    """Whose box it is; None where nothing tells, or where devices of several are in it."""
    listed = {one.vendor: one for one in facts.accelerators if not one.integrated}
    if listed:
        if len(listed) > 1:
            return None
        ((name, one),) = listed.items()
        return BoxVendor(name, True, f"{one.source} lists {one.name or 'a device'}")
    return next(_of_software(facts), None)


def _of_software(facts: HostFacts) -> Iterator[BoxVendor]:
    if runtime := other_runtime(facts):
        yield BoxVendor(runtime, False, "the torch build, or a package beside it")
    platform = facts.vllm.platform if facts.vllm else None
    if platform and (name := _PLATFORMS.get(platform, platform)) in VENDORS:
        yield BoxVendor(name, False, f"vLLM's platform is {platform}")
    for name, row in reversed([*VENDORS.items()]):
        if any(facts.driver(component) for component in row.drivers):
            yield BoxVendor(name, False, "its driver")
    for name, number in traced(facts.report).items():
        yield BoxVendor(name, False, f"line {number}")
    if facts.torch and facts.torch.cuda and not facts.torch.hip:
        yield BoxVendor("cuda", False, f"torch is built for CUDA {facts.torch.cuda}")


def traced(lines: Iterable[Line]) -> Mapping[str, int]:
    """Vendors whose software is at work in a text, and the first line that shows each."""
    found: dict[str, int] = {}
    known = tuple(lines)
    if len(known) > 2 * _ENDS:
        known = (*known[:_ENDS], *known[-_ENDS:])
    text = "\n".join(line.text for line in known)
    starts = [0, *accumulate(len(line.text) + 1 for line in known)]
    for name, pattern in _traces():
        for hit in islice(pattern.finditer(text), _TRACES):
            line = known[bisect_right(starts, hit.start()) - 1]
            if not _PROBE.search(line.text):
                found[name] = line.number
                break
    return found


@once
def _traces() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Those whose face nobody wears first."""
    found = [(name, re.compile(text)) for name, text in sections("words", "traces")]
    return tuple(reversed(found))


def other_runtime(facts: HostFacts) -> str | None:
    """The adapter name of a runtime other than CUDA that this torch or its plug-in is for."""
    packages = dict(facts.packages)
    for name, adapter in companions().items():
        if name in packages:
            return adapter
    for adapter, raw in sections("torch"):
        if "local" in raw and _torch_is_for(facts, adapter, raw["local"]):
            return adapter
        for name, tag in raw.get("builds_of", {}).items():
            if tag in packages.get(name, ""):  # its other build is for the CPU
                return adapter
    return None


def _torch_is_for(facts: HostFacts, vendor: str, tag: str) -> bool:
    """Whether torch was built for this vendor's runtime, or its version has this tag."""
    torch, build = facts.torch, VENDORS[vendor].build
    if torch is None:
        return False
    return bool(getattr(torch, build or "", None)) or (torch.local or "").startswith(tag)


@once
def companions() -> dict[str, str]:
    """Packages that bring a device to a torch which knows none: the adapter's name by package."""
    return {name: vendor for vendor, names in sections("torch", "packages") for name in names}


@once
def _advice() -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(text) for name, text in sections("words", "advice")}


def on_wsl(sentence: str, vendor: str) -> str | None:
    """What to do on WSL in place of a sentence on device nodes and kernel modules, else None."""
    return _wsl().get(vendor) if _NODES.search(sentence) else None


@once
def _wsl() -> Mapping[str, str]:
    return dict(sections("words", "wsl"))


def foreign(sentence: str, vendor: str) -> str | None:
    """The vendor for whose boxes alone a sentence is, where that is not this one; else None.

    A sentence that names several, this one among them, is for all of them; and a vendor whose
    stack is another's under other names takes that one's advice.
    """
    own = {vendor, VENDORS[vendor].derives_from if vendor in VENDORS else None}
    named = [name for name, pattern in _advice().items() if pattern.search(sentence)]
    return None if not named or own & {*named} else named[0]
