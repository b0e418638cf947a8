"""Memory of the device: what is free, and what an allocation asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.known_vendors import VENDORS
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
_LISTED: Final = r"\b[GN]PU ?(\d+)\W{1,3}([\d.]+) ?MiB"
_FULL_MIB: Final = 4096
"""Less than this in use is no full device."""
_EMPTY: Final = 0.03
"""The share of the full device's use below which another one is empty."""
_USED: Final = (
    r"(?P<one>[\d.]+ [GM]iB) already allocated|(?P<two>[\d.]+ [GM]iB) is allocated by PyTorch"
)


def free(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """vLLM's refusal at start; its words say GPU whatever the device is.

    `data` has each vendor's tool, and words of a report that tell the vendor.
    """
    vendor = box.vendor.name if box.vendor else ""
    if not vendor:
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


def one_device(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """Out of memory on one device while all others are empty, as the text or the tools say."""
    failed = [quoted(line) for line, _ in box.program_lines(_FULL, ("out of memory",))]
    vendor = box.vendor.name if box.vendor else ""
    row = VENDORS.get(vendor)
    if not failed or row is None:
        return
    used, said = _used_by_device(box)
    full = max(used, key=lambda one: used[one], default=None)
    if full is None or len(used) < 2 or used[full] < _FULL_MIB:
        return
    if all(size < used[full] * _EMPTY for one, size in used.items() if one != full):
        values = {
            "vendor": row.name,
            "full": str(full),
            "used": f"{used[full] / 1024:.0f} GiB",
            "count": str(len(used)),
            "tool": row.tool or "the vendor's tool",
            "variable": row.visible or "the visible-devices variable",
        }
        yield RuleHit([*failed[:1], *said], values)


def _used_by_device(box: ExaminedHost) -> tuple[dict[int, int], list[Evidence]]:
    """(MiB in use by device, where that is said), of one line that lists all, or of a tool."""
    for line in box.facts.report:
        listed = re.findall(_LISTED, line.text)
        if len(listed) > 1:
            return {int(number): int(float(size)) for number, size in listed}, [quoted(line)]
    tools = {
        one.index: one.memory_used_bytes >> 20
        for one in box.facts.accelerators
        if one.memory_used_bytes is not None and not one.partition
    }
    said = ", ".join(f"{number}: {size} MiB" for number, size in tools.items())
    return tools, [Evidence(said, "the tools")]


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
