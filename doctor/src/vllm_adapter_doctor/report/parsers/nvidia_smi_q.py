"""`nvidia-smi -q` as text of any age, and the same log as XML (`-q -x`).

Both are read as (section, key, value) entries, so that one rule serves both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._common import (
    binary_size,
    normal_bdf,
    number,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

_START: Final = re.compile(r"NVSMI LOG=|<nvidia_smi_log>")
_GPU: Final = re.compile(
    r"^\s*(?:GPU |<gpu id=\")(?P<bdf>[0-9A-Fa-f]{4,8}(?::[0-9A-Fa-f]{2}){2}\.[0-7])(?:\">)?\s*$"
)
_PAIR: Final = re.compile(r"^\s*(?P<key>\S(?:.*?\S)?)\s*:(?:\s+(?P<value>.*))?$")
_ELEMENT: Final = re.compile(r"<(?P<key>[a-z][a-z0-9_]*)>(?P<value>[^<]*)</(?P=key)>\s*$")
_OPEN: Final = re.compile(r"^\s*<(?P<key>[a-z][a-z0-9_]*)(?: [^>]*)?>\s*$")
_VERSION: Final = re.compile(r"(\d+(?:\.\d+)+)(?: \[Deprecated\b.*)?")
_COMPONENTS: Final = {
    "driver_version": "nvidia",
    "kmd_version": "nvidia",  # its name since release 610
    "cuda_version": "cuda",
    "cuda_umd_version": "cuda",
}
_SECTIONS: Final = (
    "fb_memory_usage",
    "shared_fb_memory_usage",
    "bar1_memory_usage",
    "conf_compute_protected_memory_usage",
    "utilization",
    "temperature",
    "gpu_power_readings",
    "power_readings",
    "module_power_readings",
    "clocks",
    "max_clocks",
    "clocks_event_reasons",
    "clocks_throttle_reasons",
    "ecc_errors",
    "volatile",
    "aggregate",
    "retired_pages",
    "remapped_rows",
    "fabric",
    "processes",
)
_WITHIN: Final = {  # parts of a section whose keys are read as the section's own
    "process_info": "processes",
    "health": "fabric",
    "gpu_ceiling_power_limit": "gpu_power_readings",
    "gpu_base_power": "gpu_power_readings",
}
_FABRIC: Final = {  # the good value of each: any other one is a fault
    "state": ("completed",),
    "status": ("success",),
    "summary": ("healthy",),
    "bandwidth": ("full",),
    "degraded_bandwidth": ("no", "false"),
    "route_recovery": ("no", "false"),
    "route_recovery_in_progress": ("no", "false"),
    "route_unhealthy": ("no", "false"),
    "access_timeout_recovery": ("no", "false"),
    "incorrect_configuration": ("none", "no", "false"),
}
_UNTOLD: Final = (
    "",
    "n/a",
    "not supported",
    "unknown",
    "requested functionality has been deprecated",
)
"""Values that say nothing."""
_ALIASES: Final = {
    "gpu_uuid": "uuid",
    "gpu_current_temp": "gpu_temp",
    "average_power_draw": "power_draw",
    "instantaneous_power_draw": "power_draw",
    "instant_power_draw": "power_draw",
    "current_power_limit": "power_limit",
    "process_id": "pid",
    "name": "process_name",
    "used_gpu_memory": "used_memory",
    "gpu_util": "gpu",
    "graphics_clock": "graphics",
    "sm_clock": "sm",
}


@dataclass(slots=True)
class _Gpu:
    bdf: str | None
    values: dict[tuple[str, str], str] = field(default_factory=dict)
    throttled: list[str] = field(default_factory=list)
    processes: list[dict[str, str]] = field(default_factory=list)
    instances: list[dict[tuple[str, str], str]] = field(default_factory=list)
    """MIG devices, whose keys are printed between their GPU's: `in_instances` while they are."""
    in_instances: bool = False


def parse(report: Report) -> HostFacts:
    """Devices of every log in the text, and the driver's versions."""
    report = without_blank_lines(report)
    starts = [position for position, _ in report.find(_START)]
    devices: tuple[Accelerator, ...] = ()
    drivers: list[Driver] = []
    for start, stop in zip(starts, [*starts[1:], len(report.lines)], strict=False):
        found, said = _log(report, start, stop)
        devices = join_accelerators(devices, found)
        drivers += said
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _log(report: Report, start: int, stop: int) -> tuple[list[Accelerator], list[Driver]]:
    gpus: list[_Gpu] = []
    drivers: list[Driver] = []
    section, attached = "", None
    for key, value, opens, bdf in _entries(report, start, stop):
        if bdf:
            gpus.append(_Gpu(normal_bdf(bdf)))
            section = ""
        elif opens:
            if gpus and key == "mig_device":  # XML opens `mig_devices` for "None" as well
                gpus[-1].instances.append({})
                gpus[-1].in_instances = True
            within = section if _WITHIN.get(key) == section else ""
            section = key if key in _SECTIONS else within
        elif not gpus:
            attached = number(value) if key == "attached_gpus" else attached
            component, version = _COMPONENTS.get(key), _VERSION.fullmatch(value)
            if component and version:
                drivers.append(Driver(component, version[1], "nvidia-smi -q"))
        else:
            _keep(gpus[-1], section, key, value)
    found = []
    for place, gpu in enumerate(gpus):
        # One device alone can be asked for (-i 3): then only the minor number tells which.
        minor = number(gpu.values.get(("", "minor_number")))
        number_ = place if attached in (None, len(gpus)) else minor
        if number_ is not None:
            found.append(_device(gpu, int(number_)))
            found += _instances(gpu, found[-1])
    return found, drivers


def _instances(gpu: _Gpu, card: Accelerator) -> Iterator[Accelerator]:
    """MIG devices of a GPU; the log names neither profile nor UUID, so `-L` tells more."""
    for values in gpu.instances:
        names = ("index", "gpu_instance_id", "compute_instance_id")
        numbers = [values.get(("", name), "") for name in names]
        if not all(text.isdigit() for text in numbers):
            continue
        sizes = {
            key: binary_size(values.get(("fb_memory_usage", key)))
            or binary_size(values.get(("shared_fb_memory_usage", key)))
            for key in ("total", "used")
        }
        units = number(values.get(("", "multiprocessor_count")))
        yield Accelerator(
            card.vendor,
            card.index,
            card.source,
            name=card.name,
            card=card.index,
            die=int(numbers[0]),
            memory_total_bytes=sizes["total"],
            memory_used_bytes=sizes["used"],
            partition=f"GI {numbers[1]} CI {numbers[2]}",
            health=Health(errors=tuple(_uncorrected(values))),
            compute_units=None if units is None else int(units),
        )


def _entries(report: Report, start: int, stop: int) -> Iterator[tuple[str, str, bool, str | None]]:
    """(key, value, whether it opens a section, bus address of a device that begins here).

    A line where the text ends without a line break is left out: its value may have been cut.
    """
    xml = "<nvidia_smi_log>" in report.lines[start].text
    for line in report.lines[start:stop]:
        text, whole = line.text, report.ended or line is not report.lines[-1]
        gpu = _GPU.match(text)
        if gpu:
            yield "", "", False, gpu["bdf"]
            continue
        if xml:
            element, opened = _ELEMENT.search(text), _OPEN.match(text)
            if element:
                yield _name(element["key"]), element["value"].strip(), False, None
            elif opened:
                yield opened["key"], "", True, None
            continue
        pair = _PAIR.match(text)
        if pair and whole:
            yield _name(pair["key"]), (pair["value"] or "").strip(), not pair["value"], None
        elif text.strip() and not pair:
            yield _name(text.strip(), section=True), "", True, None


def _name(text: str, section: bool = False) -> str:
    key = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return key if section else _ALIASES.get(key, key)


def _keep(gpu: _Gpu, section: str, key: str, value: str) -> None:
    if key == "accounting_mode":  # the first key behind the MIG devices
        gpu.in_instances = False
    if gpu.in_instances:
        gpu.instances[-1].setdefault((section, key), value)
    elif section in ("clocks_event_reasons", "clocks_throttle_reasons"):
        if value == "Active" and not key.endswith("idle"):
            gpu.throttled.append(re.sub(r"^clocks_(?:event|throttle)_reason_", "", key))
    elif section == "processes" or key == "pid":
        if key == "pid":
            gpu.processes.append({})
        if gpu.processes:
            gpu.processes[-1][key] = value
    else:
        gpu.values.setdefault((section, key), value)


def _device(gpu: _Gpu, place: int) -> Accelerator:
    values = gpu.values
    name = values.get(("", "product_name"))
    total = binary_size(values.get(("fb_memory_usage", "total")))
    used = binary_size(values.get(("fb_memory_usage", "used")))
    node = number(values.get(("", "numa_id")))
    return Accelerator(
        maker(name, "cuda"),
        place,
        "nvidia-smi -q",
        name=name,
        bdf=gpu.bdf,
        uuid=values.get(("", "uuid")),
        memory_total_bytes=total,
        memory_used_bytes=used,
        partition="MIG" if gpu.instances else None,
        memory_nodes=(int(node),) if node is not None and node >= 0 else (),
        health=_health(gpu),
        processes=tuple(_process(each) for each in gpu.processes if each.get("pid", "").isdigit()),
    )


def _health(gpu: _Gpu) -> Health:
    values = gpu.values

    def reading(key: str, *sections: str) -> float | None:
        found = (number(values.get((section, key))) for section in sections)
        return next((value for value in found if value is not None), None)

    power = ("gpu_power_readings", "power_readings")
    errors = _uncorrected(values)
    if "GPU is lost" in values.values():
        errors.append("the tool says that the GPU is lost")
    elif "Unknown Error" in values.values():
        errors.append("the tool cannot read this device any more")
    errors += [
        f"of its NVLink fabric the tool says {key.replace('_', ' ')}: {value}"
        for key, good in _FABRIC.items()
        if (value := values.get(("fabric", key), "")).lower() not in (*good, *_UNTOLD)
    ]
    recovery = values.get(("", "gpu_recovery_action"), "")
    if recovery.lower() not in ("none", *_UNTOLD):
        errors.append(f"the tool asks for a recovery of this device: {recovery}")
    failed = ("remapping_failure_occurred", "remapped_row_failure")  # as text, and in XML
    if any(values.get(("remapped_rows", key)) == "Yes" for key in failed):
        errors.append("remapping of a failed memory row failed")
    return Health(
        temperature_c=reading("gpu_temp", "temperature"),
        power_w=reading("power_draw", *power),
        power_cap_w=reading("power_limit", *power),
        utilization_percent=reading("gpu", "utilization"),
        clock_mhz=reading("sm", "clocks"),
        clock_max_mhz=reading("sm", "max_clocks"),
        throttle_reasons=tuple(dict.fromkeys(gpu.throttled)),
        errors=tuple(errors),
    )


def _uncorrected(values: dict[tuple[str, str], str]) -> list[str]:
    return [
        f"{int(count)} uncorrectable memory errors ({key.replace('_', ' ')})"
        for (section, key), value in values.items()
        if section == "volatile" and "uncorrect" in key and (count := number(value))
    ]


def _process(entry: dict[str, str]) -> DeviceProcess:
    memory = binary_size(entry.get("used_memory"))
    return DeviceProcess(int(entry["pid"]), entry.get("process_name"), memory)
