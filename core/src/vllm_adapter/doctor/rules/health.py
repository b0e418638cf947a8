"""Health and memory: lost, throttled, busy, full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, TextRule, finding, quoted
from vllm_adapter.host.device_facts import Health
from vllm_adapter.host.facts import Accelerator

_LOST: Final = re.compile(r"(?i)is lost|fallen off the bus|\bXid\b[^\n]*?: 79\b|no longer present")
_MEMORY: Final = re.compile(r"(?i)uncorrectable|\bXid\b[^\n]*?: (?:48|63|64|94|95)\b")
_UNUSABLE: Final = re.compile(
    r"(?i)not usable|failed to initiali[sz]e|init(?:iali[sz]ation)? failed"
)
_FREE: Final = re.compile(
    r"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)"
)
_BUSY_SHARE: Final = 0.10
"""Of a device's memory, beyond what its idle siblings hold."""
_THROTTLE: Final = re.compile(r"(?i)therm|power|slowdown|brake")


def _name(one: Accelerator) -> str:
    where = f" ({one.bdf})" if one.bdf else ""
    return f"{one.vendor} device {one.index}{where}"


def figures(health: Health) -> str:
    """Temperature, power and clock with their limits, as far as they were read; else empty."""
    pairs = (
        (health.power_w, health.power_cap_w, "W"),
        (health.clock_mhz, health.clock_max_mhz, "MHz"),
    )
    said = [f"{health.temperature_c:g} C"] if health.temperature_c is not None else []
    for now, most, unit in pairs:
        if now is not None:
            said.append(f"{now:g} of {most:g} {unit}" if most is not None else f"{now:g} {unit}")
    return ", ".join(said)


def _errors(box: Box) -> Iterator[Finding]:
    """What a tool or the kernel says is broken."""
    for code, pattern, cause in (
        ("VA1701", _LOST, "the kernel driver lost it"),
        ("VA1707", _MEMORY, "its memory has uncorrectable errors"),
        ("VA1704", _UNUSABLE, "the kernel driver could not start it"),
    ):
        hit = [
            (one, error)
            for one in box.facts.accelerators
            for error in one.health.errors
            if pattern.search(error)
        ]
        if hit:
            names = list(dict.fromkeys(_name(one) for one, _ in hit))
            yield finding(
                code,
                [Evidence(error, f"{one.source}, {_name(one)}") for one, error in hit[:5]],
                f"{', '.join(names)}: {cause}",
            )


def _status(box: Box) -> Iterator[Finding]:
    bad = [
        one
        for one in box.facts.accelerators
        if (one.health.status or "ok").lower() in ("alarm", "critical", "unknown error", "fault")
    ]
    if bad:
        yield finding(
            "VA1704",
            [Evidence(f"{_name(one)}: {one.health.status}", one.source) for one in bad],
            f"the vendor's tool reports {', '.join(_name(one) for one in bad)} as not healthy",
            "read the tool's own log of the device (for Ascend `npu-smi info -t health -i ID`)",
            Severity.WARNING,
        )


def _throttled(box: Box) -> Iterator[Finding]:
    for one in box.facts.accelerators:
        active = [reason for reason in one.health.throttle_reasons if _THROTTLE.search(reason)]
        if not active:
            continue
        seen = "; ".join(filter(None, (", ".join(active), figures(one.health))))
        yield finding(
            "VA1702",
            [Evidence(seen, one.source)],
            f"{_name(one)} is held down by {', '.join(active)}",
            severity=Severity.WARNING,
        )


def _held(box: Box) -> Iterator[Finding]:
    """A device that holds much more than its siblings, or a process that a tool names."""
    for vendor in dict.fromkeys(one.vendor for one in box.facts.accelerators):
        devices = [
            one
            for one in box.facts.accelerators
            if one.vendor == vendor
            and one.memory_total_bytes
            and one.memory_used_bytes is not None
        ]
        idle = min((one.memory_used_bytes or 0 for one in devices), default=0)
        for one in devices:
            total, used = one.memory_total_bytes or 1, one.memory_used_bytes or 0
            processes = [p for p in one.processes if (p.memory_bytes or 0) > total * _BUSY_SHARE]
            above = used - idle if len(devices) > 1 else 0
            if not processes and (above <= total * _BUSY_SHARE or _all_busy(devices, idle)):
                continue
            by = ", ".join(f"{p.name or 'a process'} (pid {p.pid})" for p in processes)
            yield finding(
                "VA1703",
                [
                    Evidence(
                        f"{_name(one)}: {used >> 20} of {total >> 20} MiB in use"
                        + (f" by {by}" if by else ""),
                        one.source,
                    )
                ],
                f"{_name(one)} is held by {by or 'another program'}: {used / 2**30:.1f} GiB are "
                "gone before a model is loaded",
                severity=Severity.WARNING,
            )


def _all_busy(devices: list[Accelerator], idle: int) -> bool:
    """Whether half of the devices or more are in use: a running server, not a stray program."""
    busy = [
        one
        for one in devices
        if (one.memory_used_bytes or 0) - idle > (one.memory_total_bytes or 1) * _BUSY_SHARE
    ]
    return len(busy) * 2 >= len(devices)


def _free_memory(box: Box) -> Iterator[Finding]:
    """vLLM's refusal at start; its words say GPU whatever the device is."""
    device = next((one.vendor for one in box.facts.accelerators), None)
    npu = device == "ascend" or box.says(r"(?i)\bnpu\b|ascend")
    for line, match in box.lines(_FREE):
        free, total = float(match["free"]), float(match["total"])
        tool = "npu-smi info" if npu else "the vendor's tool (nvidia-smi, npu-smi, rocm-smi)"
        yield finding(
            "VA1706",
            [quoted(line)],
            f"{total - free:.1f} of {total:.1f} GiB of the device (an accelerator of any kind: "
            f"the message says GPU for all) are held by another process",
            f"find the process with {tool} and end it, or lower --gpu-memory-utilization below "
            f"{free / total:.2f}",
        )


RULES: Final = (
    Rule("VA1704", _errors),
    Rule("VA1704", _status),
    Rule("VA1702", _throttled),
    Rule("VA1703", _held),
    Rule("VA1706", _free_memory),
    TextRule(
        "VA1705",
        r"(?P<device>NPU|CUDA|HIP|XPU|MUSA|HPU) out of memory\. Tried to allocate "
        r"(?P<size>[\d.]+ \w+)(?:[^\n]*?(?P<total>[\d.]+ GiB) total capacity)?"
        r"(?:[^\n]*?(?P<used>[\d.]+ GiB) already allocated)?",
        "the {device} device has no {size} left (capacity seen: {total}; in use by this program: "
        "{used})",
        "lower --gpu-memory-utilization, --max-model-len or --max-num-seqs, or spread the model "
        "over more devices; the runtime keeps a part of the nominal memory for itself",
    ),
)
