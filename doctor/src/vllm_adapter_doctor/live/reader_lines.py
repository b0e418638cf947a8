"""The lines that a health reader prints: their fields, declared once, and how they are read.

A reader is a module of an adapter that is run as a program (`live.readers`). It prints JSON
objects, one a line, of three kinds: a device (it has `index`), a version (`component`), or a
`fault`, which is why no device could be asked. A line that is no JSON object is a banner of a
library, and passed over; so are fields that stand in no table here, of a newer reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.hostfacts.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter_doctor.report.parsers._common import normal_bdf


@dataclass(frozen=True, slots=True)
class LineField:
    """A field of a line: what it holds, in words, how that is checked, and what it means."""

    kind: str
    holds: Callable[[Any], bool]
    meaning: str


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _processes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, list)
        and 2 <= len(one) <= 3
        and _whole(one[0])
        and (one[1] is None or _whole(one[1]))
        and (one[2:] in ([], [None]) or _text(one[2]))
        for one in value
    )


def _of_text(meaning: str) -> LineField:
    return LineField("text", _text, meaning)


def _of_whole(meaning: str) -> LineField:
    return LineField("a whole number from 0", _whole, meaning)


_SOURCE: Final = _of_text("the library that says it; the reader's module where it is left out")
DEVICE: Final[Mapping[str, LineField]] = {
    "index": _of_whole("the device's number in the library's own counting"),
    "die": _of_whole("the number of an instance or partition in its device, which `index` names"),
    "source": _SOURCE,
    "bus": _of_text("the address on the PCI bus; not of an instance"),
    "name": _of_text("the product's name"),
    "uuid": _of_text("the id by which a process is given the device"),
    "arch": _of_text('the code that is compiled for it, as "sm_90" or "gfx942"'),
    "partition": _of_text(
        'MIG on a GPU that is split into instances, the profile ("1g.18gb") on an instance; on '
        'others compute and memory partition ("SPX/NPS1")'
    ),
    "compute_units": _of_whole("multiprocessors, compute units, cores of this device now"),
    "memory_total_bytes": _of_whole("its memory"),
    "memory_used_bytes": _of_whole("the part in use, by whomever"),
    "temperature_c": LineField("a number", _number, "the hottest sensor that guards the chip"),
    "power_mw": _of_whole("what it draws now"),
    "power_cap_mw": _of_whole("what it may draw"),
    "utilization_percent": LineField(
        "a number", _number, "the share of time in which it computed"
    ),
    "clock_mhz": _of_whole("the compute clock now"),
    "clock_max_mhz": _of_whole("the highest that it can have"),
    "throttled": LineField("a list of texts", _words, "what holds the clocks down now, else []"),
    "uncorrected": _of_whole("uncorrectable memory errors since the driver was loaded"),
    "processes": LineField(
        "a list of [id, bytes or null, name or null]",
        _processes,
        "who computes on it, with the memory that each holds; the name may be left out",
    ),
    "lost": _of_text("the call that said that the device is lost"),
    "unreadable": _of_text("the call that failed with an unknown error, as of a dead device"),
}
VERSION: Final[Mapping[str, LineField]] = {
    "component": _of_text("whose version it is, as in `Driver` of the facts"),
    "version": _of_text("the version"),
    "source": _SOURCE,
}
FAULT: Final[Mapping[str, LineField]] = {
    "fault": _of_text("why no device could be asked, and what helps"),
    "source": _SOURCE,
}


@dataclass(frozen=True, slots=True)
class Lines:
    """What a reader printed. `fault` is its own, `wrong` what breaks the format, in sentences.

    `unknown` are fields that stand in no table; `source` is what the reader calls its library.
    """

    accelerators: tuple[Accelerator, ...] = ()
    drivers: tuple[Driver, ...] = ()
    fault: str | None = None
    wrong: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    source: str = ""


def parse(output: bytes, vendor: str, module: str) -> Lines:
    """Reads the lines of a vendor's reader; never raises. Lines with faults are left out."""
    devices: dict[tuple[int, int | None], Accelerator] = {}
    drivers: list[Driver] = []
    wrong: list[str] = []
    unknown: list[str] = []
    fault, source = None, module
    for number, said in _objects(output):
        fields = next((f for key, f in _KINDS.items() if key in said), None)
        if fields is None:
            continue  # something of a library
        required = [key for key in _REQUIRED if key in fields and key not in said]
        bad = [f"{key} is missing" for key in required] + [
            f"/{key} should be {fields[key].kind}, and is {json.dumps(value)[:80]}"
            for key, value in said.items()
            if key in fields and not fields[key].holds(value)
        ]
        unknown += [key for key in said if key not in fields]
        wrong += [f"line {number}: {one}" for one in bad]
        if bad:
            continue
        source = said.get("source", source)
        if fields is FAULT:
            fault = fault or said["fault"]
        elif fields is VERSION:
            drivers.append(Driver(said["component"], said["version"], said.get("source", module)))
        else:
            device = _device(vendor, said, said.get("source", module))
            if (device.index, device.die) in devices:
                wrong.append(f"line {number}: device {device.index} is there a second time")
            devices.setdefault((device.index, device.die), device)
    return Lines(
        tuple(devices.values()),
        tuple(drivers),
        fault,
        tuple(wrong),
        tuple(dict.fromkeys(unknown)),
        source,
    )


_KINDS: Final[Mapping[str, Mapping[str, LineField]]] = {
    "index": DEVICE,
    "component": VERSION,
    "fault": FAULT,
}
_REQUIRED: Final = ("version",)
"""Of the fields beside the one that names the kind."""


def _objects(output: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(output.decode("utf-8", "replace").splitlines(), start=1):
        try:
            said = json.loads(line[max(line.find("{"), 0) :])  # behind a banner without a newline
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            yield number, said


def _device(vendor: str, said: Mapping[str, Any], source: str) -> Accelerator:
    errors = []
    if said.get("lost"):
        errors.append(f"the driver says that the GPU is lost ({said['lost']})")
    if said.get("unreadable"):
        errors.append(f"the driver cannot read this device (unknown error, {said['unreadable']})")
    if said.get("uncorrected"):
        errors.append(f"{said['uncorrected']} uncorrectable memory errors")
    health = Health(
        temperature_c=said.get("temperature_c"),
        power_w=_thousandth(said.get("power_mw")),
        power_cap_w=_thousandth(said.get("power_cap_mw")),
        utilization_percent=said.get("utilization_percent"),
        clock_mhz=said.get("clock_mhz"),
        clock_max_mhz=said.get("clock_max_mhz"),
        throttle_reasons=tuple(said.get("throttled", ())),
        errors=tuple(errors),
    )
    die = said.get("die")
    return Accelerator(
        vendor,
        said["index"],
        source,
        name=said.get("name"),
        card=None if die is None else said["index"],
        die=die,
        bdf=normal_bdf(said.get("bus", "")),
        uuid=said.get("uuid"),
        arch=said.get("arch"),
        memory_total_bytes=said.get("memory_total_bytes"),
        memory_used_bytes=said.get("memory_used_bytes"),
        partition=said.get("partition"),
        health=health,
        processes=tuple(
            DeviceProcess(one[0], one[2] if len(one) > 2 else None, one[1])
            for one in said.get("processes", ())
        ),
        compute_units=said.get("compute_units"),
    )


def _thousandth(value: int | None) -> float | None:
    return None if value is None else round(value / 1000, 1)
