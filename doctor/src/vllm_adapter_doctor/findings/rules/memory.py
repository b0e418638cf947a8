"""Memory of the device: what is free, and what an allocation asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter_doctor.findings.host import ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit

_FREE: Final = r"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)"
_FULL: Final = (
    r"(?P<device>NPU|CUDA|HIP|XPU|MUSA|HPU|MLU|GCU|MACA)(?: [Ee]rror:)? out of memory\.?"
    r"(?: Tried to allocate (?P<size>[\d.]+ \w+))?"
)
_TOTAL: Final = (
    r"(?:total capacity of (?P<one>[\d.]+ [GM]iB)|(?P<two>[\d.]+ [GM]iB) total capacity)"
)
_USED: Final = (
    r"(?P<one>[\d.]+ [GM]iB) already allocated|(?P<two>[\d.]+ [GM]iB) is allocated by PyTorch"
)


def free(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """vLLM's refusal at start; its words say GPU whatever the device is.

    `data` has each vendor's tool, and words of a report that tell the vendor.
    """
    vendor = next((one.vendor for one in box.facts.accelerators), box.other_runtime)
    if vendor is None:
        vendor = next((name for name, said in data["told_by"].items() if box.has_line(said)), "")
    for line, match in box.program_lines(_FREE, ("free memory on device",)):
        remaining, total = float(match["free"]), float(match["total"])
        yield RuleHit(
            [quoted(line)],
            {
                "taken": f"{total - remaining:.1f}",
                "total": f"{total:.1f}",
                "tool": data["tools"].get(vendor, data["tools"]["other"]),
                "share": f"{int(remaining / total * 100) / 100:.2f}" if total else "",
            },
        )


def full(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """An allocation that failed, each device and size once."""
    found: dict[tuple[str, str], str] = {}
    evidence: dict[tuple[str, str], list[Evidence]] = {}
    for line, match in box.program_lines(_FULL, ("out of memory",)):
        key = (match["device"], match["size"] or "")
        found.setdefault(key, match.string)
        evidence.setdefault(key, []).append(quoted(line))
    for (device, size), text in found.items():
        total, used = re.search(_TOTAL, text), re.search(_USED, text)
        reported = ", ".join(
            f"{word} {one['one'] or one['two']}"
            for word, one in (("capacity seen", total), ("in use by this program", used))
            if one
        )
        values = {"device": device, "size": size or "memory", "told": reported}
        yield RuleHit(evidence[device, size][:3], values)
