"""Files of the kernel and of drivers that were printed with `cat`, and listings of /dev."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.hostfacts.device_facts import Accelerator, Driver
from vllm_adapter.hostfacts.facts import DeviceNode, HostFacts
from vllm_adapter.hostfacts.known_vendors import node_names
from vllm_adapter.hostfacts.vendor_files import once
from vllm_adapter_doctor.report.parsers._common import (
    is_complete_line,
    normal_bdf,
    without_blank_lines,
)
from vllm_adapter_doctor.report.parsers._makers import maker
from vllm_adapter_doctor.report.text import Report

_NVRM: Final = re.compile(
    r"NVRM version: NVIDIA UNIX .*?Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)\s"
)
_MODULE: Final = re.compile(r"/sys/module/(amdgpu|habanalabs|mtgpu|nvidia|xe|i915)/version:?\s*$")
_MODULE_VERSION: Final = re.compile(r"^\s*(\d+(?:\.\d+)+(?:-[0-9a-f]{7,})?)\s*$")
_ASSIGNED: Final = re.compile(r"^\s*([A-Za-z_]+)=\s*(\S+)\s*$")
_FILE: Final = re.compile(r"Ascend/(driver|firmware)/version\.info")
_LISTED: Final = re.compile(
    r"^\s*(?P<type>[cb-])(?P<mode>[rwxsStT-]{9})[.+@]?\s+\d+\s+\S+\s+(?P<group>\S+)\s+.*?"
    r"\s(?P<path>\S+)\s*$"
)
_FOLDER: Final = re.compile(
    r"^\s*(/dev(?:/[a-z-]+)?):?\s*$|\bls -\w*l\w*\s+(/dev(?:/[a-z-]+)?)/?\s*$"
)
_LOADED_HEAD: Final = re.compile(r"^\s*Module\s+Size\s+Used by\s*$")
_LOADED: Final = re.compile(r"^\s*([a-z][a-z0-9_]*)\s+\d{3,}\s+-?\d+(?:\s+[\w,\[\]-]+)?\s*$")
_OURS: Final = re.compile(
    r"nvidia\w*|nouveau|amdgpu|amdkfd|i915|xe|habanalabs\w*|mtgpu|metax|hydcu|drv_davinci\w*"
)
_INFORMATION: Final = re.compile(r"^\s*(Model|GPU UUID|Bus Location|Device Minor):\s+(\S.*)$")
_DENIED: Final = re.compile(
    r"(?P<path>/dev/[\w/.-]+)'?:? (?:read-write: )?Permission denied"
    r"(?:;? owner=\w+\(\d+\):\w+\((?P<group>\d+)\))?"
    r"|Permission denied: '?(?P<other>/dev/[\w/.-]+)"
)
_KINDS: Final = {"c": "char", "b": "block", "-": "file"}


@once
def _nodes() -> re.Pattern[str]:
    """The kernel's own nodes of accelerators, and those of the vendors' drivers."""
    own = [re.escape(path).replace(r"\{n\}", r"\d+") for path in node_names()]
    return re.compile("|".join((r"/dev/dri/(?:card|renderD)\d+", r"/dev/accel/accel\w+", *own)))


def parse(report: Report) -> HostFacts:
    """Versions, and device nodes: refused ones as refused, listed ones as their mode says.

    A listing does not tell who reads it: a node is taken for readable where its group may read it.
    """
    report = without_blank_lines(report)
    nodes = {node.path: node for node in (*_listed(report), *_denied(report))}
    return HostFacts(
        accelerators=tuple(dict.fromkeys(_information(report))),
        modules=tuple(sorted(_loaded(report))),
        nodes=tuple(nodes[path] for path in sorted(nodes)),
        drivers=tuple(dict.fromkeys((*_modules(report), *_ascend(report)))),
    )


def _loaded(report: Report) -> set[str]:
    """Modules of `lsmod`; without its head only those that we know by name."""
    found: set[str] = set()
    inside = False
    for position, line in enumerate(report.lines):
        head, row = _LOADED_HEAD.match(line.text), _LOADED.match(line.text)
        inside = bool(head or (inside and row))
        if row and is_complete_line(report, position) and (inside or _OURS.fullmatch(row[1])):
            found.add(row[1])
    return found


def _information(report: Report) -> Iterator[Accelerator]:
    """`/proc/driver/nvidia/gpus/*/information`: a block ends with the device's minor number."""
    values: dict[str, str] = {}
    for position, pair in report.find(_INFORMATION):
        if pair[1] == "Model":
            values = {}
        if is_complete_line(report, position):
            values[pair[1]] = pair[2]
        if pair[1] == "Device Minor" and "Model" in values and pair[2].isdigit():
            yield Accelerator(
                maker(values["Model"], "cuda"),
                int(pair[2]),
                "/proc/driver/nvidia",
                name=values["Model"],
                bdf=normal_bdf(values.get("Bus Location", "")),
                uuid=values.get("GPU UUID"),
            )
            values = {}


def _modules(report: Report) -> Iterator[Driver]:
    for position, found in report.find(_NVRM):
        if "NVRM version" in report.lines[position].text:
            yield Driver("nvidia", found[1], "/proc/driver/nvidia/version")
    for position, found in report.find(_MODULE):
        if position + 1 < len(report.lines) and is_complete_line(report, position + 1):
            version = _MODULE_VERSION.match(report.lines[position + 1].text)
            if version:
                yield Driver(found[1], version[1], f"/sys/module/{found[1]}/version")


def _ascend(report: Report) -> Iterator[Driver]:
    """`version.info` of driver and firmware, and CANN's install information."""
    component: str | None = None
    package = version = None
    for position, line in enumerate(report.lines):
        file = _FILE.search(line.text)
        if file:
            component = "ascend" if file[1] == "driver" else "ascend-firmware"
            continue
        pair = _ASSIGNED.match(line.text)
        if not pair or not is_complete_line(report, position):
            package = None if not pair else package
            continue
        key, value = pair[1].lower(), pair[2]
        if key == "package_name":
            package = value
        elif key == "version" and package and "cann-toolkit" in package.lower():
            yield Driver("cann", value, "version.info")
            package = None
        elif key == "version" and component:
            yield Driver(component, value, "version.info")
            component = None
        elif key == "version":
            version = value
        elif key == "ascendhal_version" and version:
            yield Driver("ascend", version, "version.info")
            version = None


def _listed(report: Report) -> Iterator[DeviceNode]:
    folder = "/dev"
    for position, line in enumerate(report.lines):
        where = _FOLDER.search(line.text)
        if where:
            folder = where[1] or where[2]
            continue
        found = _LISTED.match(line.text)
        if not found or not is_complete_line(report, position):
            continue
        path = found["path"] if found["path"].startswith("/") else f"{folder}/{found['path']}"
        if _nodes().fullmatch(path):
            mode = found["mode"]
            group = int(found["group"]) if found["group"].isdigit() else None
            readable, writable = "r" in mode[3:], "w" in mode[3:]
            yield DeviceNode(path, _KINDS[found["type"]], readable, writable, group)


def _denied(report: Report) -> Iterator[DeviceNode]:
    for position, found in report.find(_DENIED):
        path = found["path"] or found["other"]
        if _nodes().fullmatch(path) and (found["path"] or is_complete_line(report, position)):
            group = int(found["group"]) if found["group"] else None
            yield DeviceNode(path, "char", False, False, group)
