"""How a vendor's devices are at this moment, as its library or tool says: one short question.

A vendor's adapter may bring a reader, which asks the library by its own binding (`live.readers`),
and is asked first, since it is quicker. Else the tool is asked that the vendor's file names, and
the parsers of reports read its answer. Each program is a child process with a time limit, so that
one that hangs holds nobody up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.device_facts import Accelerator
from vllm_adapter_doctor.live.children import ProcessResult, run_all
from vllm_adapter_doctor.live.reader_lines import parse
from vllm_adapter_doctor.live.readers import VendorReader, find_readers
from vllm_adapter_doctor.live.tools import Tool, asked_tools, find_program
from vllm_adapter_doctor.report.merge import join_accelerators
from vllm_adapter_doctor.report.read import parse_report

TIMEOUT_S: Final = 5.0
_HANGS: Final = ("gave no answer", "printed more than")


@dataclass(frozen=True, slots=True)
class HealthReading:
    """What was said. With `fault`, a sentence, nothing could be read; `hangs` if it took too long.

    `asked` are the programs, for messages.
    """

    accelerators: tuple[Accelerator, ...] = ()
    asked: str = ""
    fault: str | None = None
    hangs: bool = False


def can_read(vendor: str) -> bool:
    """Whether we know how to ask for the health of this vendor's devices."""
    return os.name == "posix" and (bool(tools_of(vendor)) or vendor in find_readers()[0])


def tools_of(vendor: str) -> tuple[Tool, ...]:
    """The vendor's tools that tell of health; the first of them that is here is asked."""
    return tuple(tool for tool in asked_tools() if tool.vendor == vendor and tool.health)


def read_health(
    vendor: str,
    *,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    timeout_s: float = TIMEOUT_S,
) -> HealthReading:
    """Asks once; never raises for what a library or tool does. At most twice `timeout_s`."""
    settings = {**environ, "LC_ALL": "C", "LANGUAGE": "C", "PYTHONDONTWRITEBYTECODE": "1"}
    first = HealthReading()
    reader = find_readers()[0].get(vendor)
    if reader and sys.executable:
        first = _by_reader(reader, settings, timeout_s)
        if first.accelerators or first.hangs:
            return first
    second = _by_tool(vendor, Tree(root), settings, timeout_s)
    if second.accelerators or second.hangs or first.fault is None:
        return second
    return HealthReading(
        asked=second.asked or first.asked,
        fault="; ".join(filter(None, (first.fault, second.fault))),
    )


def _by_reader(
    reader: VendorReader, environ: Mapping[str, str], timeout_s: float
) -> HealthReading:
    (ended,) = run_all([reader.command], timeout_s=timeout_s, environ=environ)
    said = parse(ended.output, reader.vendor, reader.module)
    fault = ended.fault or next(iter(said.wrong), None)
    if fault or not said.accelerators:
        fault = fault or said.fault or "it lists no device"
        return HealthReading((), said.source, f"{said.source}: {fault}", _hangs(ended))
    return HealthReading(said.accelerators, said.source)


def _by_tool(
    vendor: str, tree: Tree, environ: Mapping[str, str], timeout_s: float
) -> HealthReading:
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
            return HealthReading(found, program)
        said = faults[0] if faults else f"{program} lists no device"
        return HealthReading((), program, said, any(map(_hangs, ended)))
    return HealthReading(fault="; ".join(missing))


def _parsed(vendor: str, ended: ProcessResult) -> tuple[Accelerator, ...]:
    """The vendor's devices in an answer; half an answer of a killed program is none."""
    if ended.fault is not None and not ended.fault.startswith("ended with"):
        return ()
    try:
        facts = parse_report(ended.output.decode("utf-8", "replace"))
    except Exception:  # a tool's answer that breaks a parser of ours is no answer
        return ()
    return tuple(one for one in facts.accelerators if one.vendor == vendor)


def _hangs(ended: ProcessResult) -> bool:
    return ended.fault is not None and ended.fault.startswith(_HANGS)
