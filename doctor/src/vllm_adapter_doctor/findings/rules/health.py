"""Health and memory: lost, throttled, busy, full."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.device_facts import DeviceProcess, Health
from vllm_adapter.hostfacts.facts import Accelerator
from vllm_adapter_doctor.devices.health_rules import (
    ErrorKind,
    is_broken,
    kind_of,
    kinds,
    status_verdict,
)
from vllm_adapter_doctor.findings.host import MAX_EVIDENCE, ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit

_BUSY_SHARE: Final = 0.10
"""Of a device's memory, beyond what its idle siblings hold."""
_LEAST_BYTES: Final = 1 << 30
_LEAST_SHARE: Final = 0.05
"""Less than one of these is what drivers, displays and monitors hold: nobody misses it."""
_HALF: Final = 0.5
_NEARLY: Final = 0.9
_LINE: Final = (
    r"NVRM: Xid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<xid>\d+),? ?(?P<what>.*)"
    r"|(?:amdgpu|xe|i915) (?P<place>[0-9a-f]{4}:[0-9a-f:.]+): (?P<other>\S.*)"
)
_SERVER: Final = r"(?i)vllm|sglang|ray::|EngineCore|Worker_TP"


def _name(one: Accelerator) -> str:
    if one.source == "kernel log" and one.bdf:  # which counts no devices
        return _place(one)
    where = f" ({one.bdf})" if one.bdf else ""
    return f"{one.vendor} device {one.index}{where}"


def _place(one: Accelerator) -> str:
    """A device as the kernel's log names it."""
    return f"{one.vendor} device {one.bdf or one.index}"


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


def device_errors(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """What a tool or the kernel says is broken, by the kinds of `devices.health_rules`.

    Where no device has an error, lines of the kernel's log are looked at that the parsers did not
    take for whole ones: they are wrapped, or the last.
    """
    known = kinds()
    if not any(one.health.errors for one in box.facts.accelerators):
        yield from _of_lines(box, [one for one in known if one.name not in data["of_devices"]])
        return
    hung: set[str] = set()  # devices of which the worse is said already
    for kind in known:
        named = _place if kind.name in data["by_place"] else _name
        hit = [
            (named(one), one.source, error)
            for one in box.facts.accelerators
            for error in one.health.errors
            if kind_of(error, known) is kind
        ]
        if hit:
            evidence = [Evidence(error, f"{source}, {name}") for name, source, error in hit]
            if kind.name == "reset":
                hit = [one for one in hit if one[0] not in hung]
            hung |= {name for name, _, _ in hit}
            names = ", ".join(dict.fromkeys(name for name, _, _ in hit))
            if not names:
                continue
            yield RuleHit(evidence[:MAX_EVIDENCE], {"devices": names}, kind.name)


def _of_lines(box: ExaminedHost, known: Sequence[ErrorKind]) -> Iterator[RuleHit]:
    for line, found in box.program_lines(_LINE, ("nvrm: xid", "amdgpu", "gpu hang")):
        error = f"Xid {found['xid']}: {found['what']}" if found["xid"] else found["other"]
        kind = kind_of(error, known)
        if kind:
            names = f"device {found['bdf'] or found['place']}"
            yield RuleHit([quoted(line)], {"devices": names}, kind.name)


def status(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """The tool's own word for a device's state: what keeps it from being used, and lesser ones.

    Where an error says why, it is not said again.
    """
    said = [(one, status_verdict(one)) for one in box.facts.accelerators if not is_broken(one)]
    for case, stops in (("bad", True), ("lesser", False)):
        found = [one for one, verdict in said if verdict and verdict.stops is stops]
        if found:
            yield RuleHit(
                [Evidence(f"{_name(one)}: {one.health.status}", one.source) for one in found],
                {"devices": ", ".join(map(_name, found))},
                case,
            )


def throttled(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A device that is held down; at its power cap is where a loaded one works."""
    for one in box.facts.accelerators:
        reasons = one.health.throttle_reasons
        active = [reason for reason in reasons if re.search(data["reasons"], reason)]
        if not active:
            continue
        seen = "; ".join(filter(None, (", ".join(active), figures(one.health))))
        capped = all(re.search(data["cap"], reason) for reason in active)
        now, most = one.health.clock_mhz, one.health.clock_max_mhz
        slow = bool(now and most and now < most * _HALF)
        yield RuleHit(
            [Evidence(seen, one.source)],
            {"device": _name(one), "reasons": ", ".join(active)},
            "at its cap" if capped and not slow else "held down",
        )


def held(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A device that holds much more than its siblings, or a process that a tool names."""
    parted = data["parted"]
    for vendor in dict.fromkeys(one.vendor for one in box.facts.accelerators):
        devices = [
            one
            for one in box.facts.accelerators
            if one.vendor == vendor
            and one.memory_total_bytes
            and one.memory_used_bytes is not None
        ]
        whole = (one for one in devices if not _part(one, parted))
        idle = min((one.memory_used_bytes or 0 for one in whole), default=0)
        said: set[int] = set()
        yield from _in_use(box, devices)
        for one in devices:
            total = one.memory_total_bytes or 1
            processes = [p for p in one.processes if (p.memory_bytes or 0) > total * _BUSY_SHARE]
            theirs = sum(p.memory_bytes or 0 for p in processes)
            used = max(one.memory_used_bytes or 0, theirs)
            part = _part(one, parted)
            above = used - idle if len(devices) > 1 and not part else 0
            if used < max(_LEAST_BYTES, total * _LEAST_SHARE):
                continue
            if not processes and (above <= total * _BUSY_SHARE or _all_busy(devices, idle)):
                continue
            if not box.live and _at_work(devices, processes, idle):
                continue
            if part:
                if one.index in said:
                    continue  # its parent or another instance was named
                said.add(one.index)
            by = ", ".join(f"{p.name or 'a process'} (pid {p.pid})" for p in processes)
            yield RuleHit(
                [
                    Evidence(
                        f"{_name(one)}: {used >> 20} of {total >> 20} MiB in use"
                        + (f" by {by}" if by else ""),
                        one.source,
                    )
                ],
                {
                    "device": _name(one),
                    "by": by or "another program",
                    "gone": f"{used / 2**30:.1f}",
                },
                "now" if box.live or len(devices) > 1 else "in a report",
            )


def _in_use(box: ExaminedHost, devices: Sequence[Accelerator]) -> Iterator[RuleHit]:
    """Devices of a report that are in use beside others that are free."""
    devices = [one for one in devices if one.partition is None]
    full = [
        one
        for one in devices
        if (one.memory_used_bytes or 0) > (one.memory_total_bytes or 1) * _HALF
    ]
    if box.live or not full or any(one.processes for one in full):
        return
    alone = len(devices) == 1 and (full[0].memory_used_bytes or 0) > _NEARLY * (
        full[0].memory_total_bytes or 1
    )
    if len(full) == len(devices) and not alone:
        return
    evidence = [
        Evidence(
            f"{_name(one)}: {(one.memory_used_bytes or 0) >> 20} of "
            f"{(one.memory_total_bytes or 0) >> 20} MiB in use",
            one.source,
        )
        for one in full
    ]
    free = ", ".join(str(one.index) for one in devices if one not in full) or "none"
    values = {"devices": ", ".join(map(_name, full)), "free": free}
    yield RuleHit(evidence[:MAX_EVIDENCE], values, "in use")


def _part(one: Accelerator, parted: str) -> bool:
    """Whether it is an instance of a GPU that can be cut into such, or one that is cut."""
    return one.vendor == parted and one.partition is not None


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
