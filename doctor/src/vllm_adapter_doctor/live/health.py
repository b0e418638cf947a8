"""How a vendor's devices are at this moment, as its library or tool says: one short question.

What is asked is in the vendors' files, and what is answered is read by the parsers of reports.
Each program is a child process with a time limit, so that one that hangs holds nobody up.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.device_facts import Accelerator, DeviceProcess, Health
from vllm_adapter_doctor.live.children import Ended, run_all
from vllm_adapter_doctor.live.tools import Tool, asked_tools, find_program
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.parsers._common import normal_bdf
from vllm_adapter_doctor.report.read import parse_report

TIMEOUT_S: Final = 5.0
_CHILDREN: Final = {"libnvidia-ml.so.1": Path(__file__).with_name("_health_child.py")}
"""Programs of ours that ask a library, which is quicker than its vendor's tool."""
_HANGS: Final = ("gave no answer", "printed more than")


@dataclass(frozen=True, slots=True)
class Reading:
    """What was said. With `fault`, a sentence, nothing could be read; `hangs` if it took too long.

    `asked` are the programs, for messages.
    """

    accelerators: tuple[Accelerator, ...] = ()
    asked: str = ""
    fault: str | None = None
    hangs: bool = False


def can_read(vendor: str) -> bool:
    """Whether we know how to ask for the health of this vendor's devices."""
    return os.name == "posix" and bool(tools_of(vendor))


def tools_of(vendor: str) -> tuple[Tool, ...]:
    """The vendor's tools that tell of health; the first of them that is here is asked."""
    return tuple(tool for tool in asked_tools() if tool.vendor == vendor and tool.health)


def _library(vendor: str) -> str | None:
    """The library of the vendor that we can ask."""
    return next((one.library for one in tools_of(vendor) if one.library in _CHILDREN), None)


def read_health(
    vendor: str,
    *,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    timeout_s: float = TIMEOUT_S,
) -> Reading:
    """Asks once; never raises for what a library or tool does. At most twice `timeout_s`."""
    settings = {**environ, "LC_ALL": "C", "LANGUAGE": "C", "PYTHONDONTWRITEBYTECODE": "1"}
    first = Reading()
    library = _library(vendor)
    if library and sys.executable:
        first = _by_library(vendor, library, settings, timeout_s)
        if first.accelerators or first.hangs:
            return first
    second = _by_tool(vendor, Tree(root), settings, timeout_s)
    if second.accelerators or second.hangs or first.fault is None:
        return second
    return Reading(asked=second.asked or first.asked, fault=f"{first.fault}; {second.fault}")


def _by_library(vendor: str, asked: str, environ: Mapping[str, str], timeout_s: float) -> Reading:
    command = (sys.executable, "-I", "-S", "-B", str(_CHILDREN[asked]))
    (ended,) = run_all([command], timeout_s=timeout_s, environ=environ)
    found, fault = [], ended.fault
    for line in ended.output.decode("utf-8", "replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:  # a banner of the library
            continue
        if isinstance(said, dict) and isinstance(said.get("index"), int):
            found.append(_of_library(vendor, said, asked))
        elif isinstance(said, dict):
            fault = fault or str(said.get("fault"))
    if ended.fault or not found:
        fault = fault or "it tells of no device"
        return Reading((), asked, f"{asked}: {fault}", _hangs(ended))
    return Reading(tuple(found), asked)


def _of_library(vendor: str, said: Mapping[str, Any], source: str) -> Accelerator:
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
        clock_mhz=said.get("clock_mhz"),
        clock_max_mhz=said.get("clock_max_mhz"),
        throttle_reasons=tuple(said.get("throttled", ())),
        errors=tuple(errors),
    )
    return Accelerator(
        vendor,
        said["index"],
        source,
        name=said.get("name"),
        bdf=normal_bdf(said.get("bus", "")),
        uuid=said.get("uuid"),
        memory_total_bytes=said.get("memory_total_bytes"),
        memory_used_bytes=said.get("memory_used_bytes"),
        partition="MIG" if said.get("mig") else None,
        health=health,
        processes=tuple(
            DeviceProcess(pid, memory_bytes=size) for pid, size in said.get("processes", ())
        ),
    )


def _thousandth(value: int | None) -> float | None:
    return None if value is None else round(value / 1000, 1)


def _by_tool(vendor: str, tree: Tree, environ: Mapping[str, str], timeout_s: float) -> Reading:
    missing = []
    for tool in tools_of(vendor):
        program, calls = tool.program, tool.health
        path, fault = find_program(tree, tool, environ)
        if path is None:
            missing.append(fault or f"{program}: not on PATH")
            continue
        ended = run_all(
            [(path, *words.split()) for words in calls], timeout_s=timeout_s, environ=environ
        )
        found: tuple[Accelerator, ...] = ()
        for one in ended:
            found = join_accelerators(found, _parsed(vendor, one))
        faults = [
            f"{f'{program} {words}'.strip()} {one.fault}"
            for words, one in zip(calls, ended, strict=True)
            if one.fault
        ]
        if found:
            return Reading(found, program)
        said = faults[0] if faults else f"{program} tells of no device"
        return Reading((), program, said, any(map(_hangs, ended)))
    return Reading(fault="; ".join(missing))


def _parsed(vendor: str, ended: Ended) -> tuple[Accelerator, ...]:
    """The vendor's devices in an answer; half an answer of a killed program is none."""
    if ended.fault is not None and not ended.fault.startswith("ended with"):
        return ()
    try:
        facts = parse_report(ended.output.decode("utf-8", "replace"))
    except Exception:  # a tool's answer that breaks a parser of ours is no answer
        return ()
    return tuple(one for one in facts.accelerators if one.vendor == vendor)


def _hangs(ended: Ended) -> bool:
    return ended.fault is not None and ended.fault.startswith(_HANGS)
