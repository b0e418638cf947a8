"""The kernel's log: devices that it cannot use, errors of devices, and versions of modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Driver, Health
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers._common import (
    is_complete_line,
    normal_bdf,
    without_blank_lines,
)
from vllm_adapter_doctor.report.text import Report

SOURCE: Final = "kernel log"
_OURS: Final = re.compile(r"habanalabs|NVRM|amdgpu|\bxe |\bi915 ")
_BDF: Final = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_HABANA: Final = re.compile(
    r"\bhabanalabs (?P<who>(?:hl|accel)\d+|" + _BDF + r"): (?P<what>\S.*)$"
)
_HABANA_CARD: Final = re.compile(r"\b(?:hl|accel)(\d+)\b")
_HABANA_ADDED: Final = re.compile(rf"Successfully added device ({_BDF})")
_HABANA_ACCEL: Final = re.compile(
    rf"\baccel accel(\d+): Successfully added device ({_BDF}) to habanalabs driver"
)
_HABANA_FOUND: Final = re.compile(rf"\bhabanalabs ({_BDF}): Habana Labs (\w+) device detected")
_HABANA_DRIVER: Final = re.compile(
    r"\bhabanalabs[ :].*?[Dd]river,? [Vv]ersion: (\d+(?:\.\d+)+-[0-9a-f]{7,})\s*$"
)
_HABANA_BAD: Final = re.compile(
    r"^(?:Failed|failed|Cannot|Can't|Error)\b|NOT usable|unusable|fatal|[Hh]eartbeat"
    r"|unresponsive|uncorrectable"
)
_XID: Final = re.compile(
    r"\bNVRM: Xid \(PCI:(?P<bdf>[0-9a-fA-F:]+(?:\.\d)?)\): (?P<code>\d+), (?P<what>\S.*)$"
)
_NVIDIA: Final = re.compile(
    rf"\bNVRM: GPU (?P<bdf>{_BDF}): (?P<what>.*(?:fallen|failed|RmInit).*)$"
)
_UNSUPPORTED: Final = re.compile(rf"\bNVRM: The NVIDIA GPU (?P<bdf>{_BDF})\b")
_CLIENT: Final = re.compile(
    r"\bNVRM: API mismatch: the client .*?has the version (\d+(?:\.\d+)+),"
)
_MODULE: Final = re.compile(r"\bthis kernel module has the version (\d+(?:\.\d+)+)\.(?:\s|$)")
_LOADED: Final = re.compile(
    r"\bNVRM: loading NVIDIA UNIX .*?Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)\s"
)
_AMD: Final = re.compile(rf"\bamdgpu (?P<bdf>{_BDF}): (?P<what>\S.*)$")
_AMD_BAD: Final = re.compile(
    r"GPU reset begin|GPU reset.* failed|queue reset failed|MODE\d reset|GPU reset succeeded"
    r"|SMU: I'm not done"
    r"|ring \S+ timeout|uncorrectable|GPU recovery failed"
    r"|[Ff]atal error during GPU init|probe .*failed|page fault|MES failed"
)
_AMD_VERSION: Final = re.compile(r"\bamdgpu version: (\d+(?:\.\d+)+)\s*$")
_INTEL: Final = re.compile(rf"\b(?:xe|i915) (?P<bdf>{_BDF}): (?P<what>\S.*)$")
_INTEL_BAD: Final = re.compile(
    r"\*ERROR\*|GPU HANG|wedged|Timedout job|probe .*failed|[Ee]ngine reset"
    r"|Fault response: Unsuccess"
)
_SINGLE: Final = (
    ("rocm", _AMD, _AMD_BAD),
    ("xpu", _INTEL, _INTEL_BAD),
)


def parse(report: Report) -> HostFacts:
    """Devices that the log names, each with its errors, in the order of first mention."""
    report = without_blank_lines(report)
    found: dict[tuple[str, str], list[str]] = {}
    places: dict[str, str] = {}
    detected: dict[str, str] = {}
    drivers: list[Driver] = []
    for position, line in enumerate(report.lines):
        if not is_complete_line(report, position):
            break  # the sentence may be cut
        text = line.text
        if not _OURS.search(text):
            continue
        _gaudi(text, found, places)
        if there := _HABANA_FOUND.search(text):
            detected[there[1]] = there[2]
        xid = _XID.search(text)
        nvidia = None if xid else _NVIDIA.search(text)
        if xid:
            _note(found, "cuda", _full(xid["bdf"]), f"Xid {xid['code']}: {xid['what']}")
        elif nvidia:
            _note(found, "cuda", nvidia["bdf"], nvidia["what"])
        refused = _UNSUPPORTED.search(text)
        if refused:
            following = report.lines[position + 1 : position + 3]
            _note(found, "cuda", refused["bdf"], _details_below(one.text for one in following))
        for vendor, pattern, bad in _SINGLE:
            one = pattern.search(text)
            if one:
                _note(found, vendor, one["bdf"], one["what"] if bad.search(one["what"]) else None)
        for component, version in (
            ("nvml", _CLIENT),
            ("nvidia", _MODULE),
            ("nvidia", _LOADED),
            ("amdgpu", _AMD_VERSION),
            ("habanalabs", _HABANA_DRIVER),
        ):
            said = version.search(text)
            if said:
                drivers.append(Driver(component, said[1], SOURCE))
    return HostFacts(
        accelerators=_devices(found, places, detected), drivers=tuple(dict.fromkeys(drivers))
    )


def _details_below(lines: Iterable[str]) -> str | None:
    """What the driver says of a GPU in the lines after the one that names it."""
    words = " ".join(lines)
    if "fallen off the bus" in words:
        return "the GPU has fallen off the bus"
    return "the loaded NVIDIA driver does not support it" if "not supported" in words else None


def _gaudi(text: str, found: dict[tuple[str, str], list[str]], places: dict[str, str]) -> None:
    started = _HABANA_ACCEL.search(text)
    if started:
        places[started[1]] = started[2]
        _note(found, "gaudi", started[1], None)
    line = _HABANA.search(text)
    if not line:
        return
    who, what = line["who"], line["what"]
    named = _HABANA_CARD.search(f"{who} {what}")
    if not named:
        return
    added = _HABANA_ADDED.search(what)
    bdf = added[1] if added else None if ":" not in who else who
    if bdf:
        places[named[1]] = bdf
    _note(found, "gaudi", named[1], what if _HABANA_BAD.search(what) else None)


def _note(
    found: dict[tuple[str, str], list[str]], vendor: str, who: str | None, error: str | None
) -> None:
    if who:
        errors = found.setdefault((vendor, who), [])
        if error and error not in errors:
            errors.append(error)


def _full(text: str) -> str | None:
    """A bus address as NVRM prints it, which leaves out the function."""
    return normal_bdf(text if "." in text else f"{text}.0")


def _devices(
    found: dict[tuple[str, str], list[str]], places: dict[str, str], detected: dict[str, str]
) -> tuple[Accelerator, ...]:
    devices = [
        Accelerator("gaudi", index, SOURCE, name=name, bdf=normal_bdf(bdf), driver="habanalabs")
        for index, (bdf, name) in enumerate(detected.items())
    ]
    for (vendor, who), errors in found.items():
        gaudi = who.isdigit()  # its driver names devices by number, all others by bus address
        if not (errors or gaudi):
            continue  # a driver's everyday talk names functions that are no accelerators
        unusable = gaudi and bool(errors)
        devices.append(
            Accelerator(
                vendor,
                int(who) if gaudi else sum(device.vendor == vendor for device in devices),
                SOURCE,
                bdf=normal_bdf(places.get(who, "") if gaudi else who),
                driver="habanalabs" if gaudi else None,
                health=Health(status="NOT usable" if unusable else None, errors=tuple(errors)),
            )
        )
    return tuple(devices)
