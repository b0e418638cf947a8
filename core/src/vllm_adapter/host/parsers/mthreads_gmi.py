"""`mthreads-gmi` of Moore Threads: its table, which has bars between columns only."""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.host.device_facts import Accelerator, DeviceProcess, Driver, Health
from vllm_adapter.host.facts import HostFacts
from vllm_adapter.host.merge import join_accelerators
from vllm_adapter.host.parsers._common import MIB, dense, normal_bdf
from vllm_adapter.host.parsers._frame import BDF
from vllm_adapter.host.text import Report

_DRIVER: Final = re.compile(r"\bmthreads-gmi:\s*\S+\s+Driver Version:\s*(\d+(?:\.\d+)+[\w-]*)\s*$")
_FIRST: Final = re.compile(
    rf"^\s*(?P<index>\d+)\s+(?P<name>MTT\s[^|]*)\|\s*(?P<bdf>{BDF})\s*\|\s*"
    r"(?P<load>\d{1,3})%(?:\s+(?P<used>\d+)MiB\s*\(\s*(?P<total>\d+)MiB\s*\))?"
)
_SECOND: Final = re.compile(r"\|\s*(?P<temperature>-?\d+)\s*C\b")
_LISTED: Final = re.compile(
    r"^\s*GPU\s?(\d+)\s*:\s*(MTT\s.*?) \(UUID:?\s*([0-9A-Fa-f-]{36})\)\s*$"
)
_PROCESS: Final = re.compile(
    r"^\s*(?P<index>\d+)\s+(?P<pid>\d+)\s+"
    r"(?P<name>\S+(?: \S+)*?)\s+(?P<mib>\d+)MiB\s*$"
)
_SOURCE: Final = "mthreads-gmi"


def parse(report: Report) -> HostFacts:
    """Devices, their processes, and the driver."""
    report = dense(report)
    drivers = [
        Driver("mtgpu", found[1], _SOURCE)
        for line in report.lines
        if (found := _DRIVER.search(line.text)) and (report.ended or line is not report.lines[-1])
    ]
    texts = [line.text for line in report.lines]
    devices: tuple[Accelerator, ...] = tuple(
        Accelerator("musa", int(found[1]), _SOURCE, name=found[2], uuid=found[3])
        for text in texts
        if (found := _LISTED.match(text))
    )
    started = next((place for place, text in enumerate(texts) if "mthreads-gmi:" in text), 0)
    rows = [row for text in texts[started:] if (row := _PROCESS.match(text))]
    for place, text in enumerate(texts):
        first = _FIRST.match(text)
        if first:
            second = _SECOND.search(texts[place + 1]) if texts[place + 1 :] else None
            devices = join_accelerators(devices, (_device(first, second, rows),))
    return HostFacts(accelerators=devices, drivers=tuple(dict.fromkeys(drivers)))


def _device(
    first: re.Match[str], second: re.Match[str] | None, rows: list[re.Match[str]]
) -> Accelerator:
    return Accelerator(
        "musa",
        int(first["index"]),
        _SOURCE,
        name=first["name"].strip(),
        bdf=normal_bdf(first["bdf"]),
        memory_total_bytes=int(first["total"]) * MIB if first["total"] else None,
        memory_used_bytes=int(first["used"]) * MIB if first["used"] else None,
        health=Health(
            temperature_c=float(second["temperature"]) if second else None,
            utilization_percent=float(first["load"]),
        ),
        processes=tuple(
            dict.fromkeys(
                DeviceProcess(int(row["pid"]), row["name"], int(row["mib"]) * MIB)
                for row in rows
                if row["index"] == first["index"]
            )
        ),
    )
