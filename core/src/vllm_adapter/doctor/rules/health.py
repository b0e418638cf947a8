"""Health and memory: lost, throttled, busy, full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import MAX_EVIDENCE, Box, Rule, finding
from vllm_adapter.host.device_facts import DeviceProcess, Health
from vllm_adapter.host.facts import Accelerator

LOST: Final = (
    r"(?i)is lost|fallen off the bus|\bXid 79\b|no longer present|cannot (?:read|reach) th[ei]s? "
    r"device"
)
MEMORY: Final = r"(?i)uncorrectable|\bXid (?:48|63|64|92|94|95|140)\b|failed memory row|\bDBE\b"
FABRIC: Final = "of its NVLink fabric"
_UNUSABLE: Final = (
    r"(?i)not usable|failed to initiali[sz]e|init(?:iali[sz]ation)? failed|RmInitAdapter|"
    r"fatal error during GPU init|probe .*failed|heartbeat|unresponsive"
)
_BUSY_SHARE: Final = 0.10
"""Of a device's memory, beyond what its idle siblings hold."""
_LEAST_BYTES: Final = 1 << 30
_LEAST_SHARE: Final = 0.05
"""Less than one of these is what drivers, displays and monitors hold: nobody misses it."""
_THROTTLE: Final = r"(?i)therm|power|slowdown|brake|current|prochot|ppt"
_CAP: Final = r"(?i)(?:sw_?|software )?power[_ ]cap|\bppt\b|^socket power$"
_HALF: Final = 0.5
_SERVER: Final = r"(?i)vllm|sglang|ray::|EngineCore|Worker_TP"
_UNHEALTHY: Final = ("alarm", "critical", "unknown error", "fault", "abnormal", "warning")


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
        ("VA1701", LOST, "the kernel driver lost it"),
        ("VA1707", MEMORY, "its memory has uncorrectable errors"),
        ("VA1704", _UNUSABLE, "the kernel driver could not start it"),
    ):
        hit = [
            (one, error)
            for one in box.facts.accelerators
            for error in one.health.errors
            if re.search(pattern, error)
        ]
        if hit:
            names = list(dict.fromkeys(_name(one) for one, _ in hit))
            yield finding(
                code,
                [Evidence(error, f"{one.source}, {_name(one)}") for one, error in hit[:5]],
                f"{', '.join(names)}: {cause}",
            )


def _fabric(box: Box) -> Iterator[Finding]:
    """What the tool says of the NVLink fabric, device by device."""
    hit = [
        (one, error)
        for one in box.facts.accelerators
        for error in one.health.errors
        if FABRIC in error
    ]
    if hit:
        names = ", ".join(dict.fromkeys(_name(one) for one, _ in hit))
        yield finding(
            "VA1808",
            [Evidence(error, f"{one.source}, {_name(one)}") for one, error in hit[:MAX_EVIDENCE]],
            f"{names}: its part of the NVLink fabric is not healthy, or not whole",
            "look at the log of nvidia-fabricmanager and at `nvidia-smi nvlink -s`; reset the "
            "GPUs and switches together or reboot the host; leave these devices out of a tensor "
            "parallel group until then",
            Severity.WARNING,
        )


def _status(box: Box) -> Iterator[Finding]:
    bad = [
        one for one in box.facts.accelerators if (one.health.status or "ok").lower() in _UNHEALTHY
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
        active = [reason for reason in one.health.throttle_reasons if re.search(_THROTTLE, reason)]
        if not active:
            continue
        seen = "; ".join(filter(None, (", ".join(active), figures(one.health))))
        capped = all(re.search(_CAP, reason) for reason in active)
        now, most = one.health.clock_mhz, one.health.clock_max_mhz
        slow = bool(now and most and now < most * _HALF)
        yield finding(
            "VA1702",
            [Evidence(seen, one.source)],
            f"{_name(one)} is held down by {', '.join(active)}"
            + (": usual under full load" if capped and not slow else ""),
            # at its power cap is where a loaded device works
            severity=Severity.NOTE if capped and not slow else Severity.WARNING,
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
        idle = min((one.memory_used_bytes or 0 for one in devices if not _mig(one)), default=0)
        said: set[int] = set()
        for one in devices:
            total = one.memory_total_bytes or 1
            processes = [p for p in one.processes if (p.memory_bytes or 0) > total * _BUSY_SHARE]
            theirs = sum(p.memory_bytes or 0 for p in processes)
            used = max(one.memory_used_bytes or 0, theirs)
            above = used - idle if len(devices) > 1 and not _mig(one) else 0
            if used < max(_LEAST_BYTES, total * _LEAST_SHARE):
                continue
            if not processes and (above <= total * _BUSY_SHARE or _all_busy(devices, idle)):
                continue
            if not box.live and _at_work(devices, processes, idle):
                continue
            if _mig(one):
                if one.index in said:
                    continue  # its parent or another instance was named
                said.add(one.index)
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
                severity=Severity.WARNING if box.live or len(devices) > 1 else Severity.NOTE,
            )


def _mig(one: Accelerator) -> bool:
    """Whether it is an instance of MIG, or a GPU that is cut into them."""
    return one.vendor == "cuda" and one.partition is not None


def _at_work(devices: list[Accelerator], processes: list[DeviceProcess], idle: int) -> bool:
    """Whether a report is of a box that serves: half of the devices in use, or by a server."""
    if len(devices) == 1:
        return bool(processes) and all(re.search(_SERVER, one.name or "") for one in processes)
    held = [
        one
        for one in devices
        if any(
            (each.memory_bytes or 0) > (one.memory_total_bytes or 1) * _BUSY_SHARE
            for each in one.processes
        )
    ]
    return len(held) * 2 >= len(devices) or _all_busy(devices, idle)


def _all_busy(devices: list[Accelerator], idle: int) -> bool:
    """Whether half of the devices or more are in use: a running server, not a stray program."""
    busy = [
        one
        for one in devices
        if (one.memory_used_bytes or 0) - idle > (one.memory_total_bytes or 1) * _BUSY_SHARE
    ]
    return len(busy) * 2 >= len(devices)


RULES: Final = (
    Rule("VA1704", _errors),
    Rule("VA1704", _status),
    Rule("VA1808", _fabric),
    Rule("VA1702", _throttled),
    Rule("VA1703", _held),
)
