"""Asks the vendors' tools that are here, all at once, and reads their answers as a report.

A tool that hangs, dies, is missing or cannot be started is an entry of `HostFacts.unknown`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.facts import Accelerator, Driver, HostFacts, Line
from vllm_adapter.hostfacts.vendor_files import once, sections
from vllm_adapter_doctor.live.children import Ended, run_all
from vllm_adapter_doctor.report.merge import join_accelerators, merge, same_device
from vllm_adapter_doctor.report.parsers._common import normal_bdf
from vllm_adapter_doctor.report.read import parse_report


@dataclass(frozen=True, slots=True)
class Tool:
    """A vendor's tool. `calls` are read together as one text, each of `documents` alone.

    `folders` are where its packages put it without a place on PATH. `unless` is a program after
    which it has nothing to add, `library` the management library that a process of ours asks, and
    `health` the calls that tell how the devices are.
    """

    vendor: str
    program: str
    calls: tuple[str, ...] = ("",)
    documents: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    unless: str | None = None
    library: str | None = None
    health: tuple[str, ...] = ()


@once
def asked_tools() -> tuple[Tool, ...]:
    """The tools that are asked, of every vendor; one that we can read alone is not."""
    return tuple(
        Tool(
            vendor,
            raw["program"],
            tuple(raw.get("calls", ("",))),
            tuple(raw.get("documents", ())),
            tuple(raw.get("folders", ())),
            raw.get("unless"),
            raw.get("library"),
            tuple(raw.get("health", ())),
        )
        for vendor, every in sections("tools")
        for raw in every
        if raw.get("asked", True)
    )


_POSIX: Final = os.name == "posix"
_DRIVER_CHILD: Final = Path(__file__).with_name("_driver_child.py")
_LIBRARIES: Final = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class _Call:
    """One child: what it is called in messages, its command, and the tool whose it is."""

    name: str
    command: tuple[str, ...]
    tool: Tool | None
    document: bool = False


def ask_tools(
    tree: Tree,
    seen: Collection[str],
    environ: Mapping[str, str],
    *,
    timeout_s: float,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> HostFacts:
    """What the tools of this machine say; `seen` are the vendors whose device or driver is here.

    `tree.unknown` gets what no tool could say. `told` is called with how many have ended, and of
    how many. `report` holds the answers line by line, each below its command.
    """
    if not _POSIX:
        tree.missing("tools", "the vendors' tools: they are asked on Linux and its like alone")
        return HostFacts()
    calls = _plan(tree, seen, environ)
    count = 0

    def one_ended() -> None:
        nonlocal count
        count += 1
        told(count, len(calls))

    settings = {**environ, "LC_ALL": "C", "LANGUAGE": "C", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = run_all(
        [call.command for call in calls], timeout_s=timeout_s, environ=settings, done=one_ended
    )
    texts: dict[tuple[str, bool], str] = {}
    parts: list[HostFacts] = []
    libraries = HostFacts()
    for call, end in zip(calls, ended, strict=True):
        if end.fault:
            tree.missing(f"tools.{call.name}", f"{call.name} {end.fault}")
        if call.tool is None:
            libraries = _libraries(end.output)
        elif call.document:
            texts[call.name, True] = _text(end)
        else:
            key = (call.tool.program, False)
            texts[key] = texts.get(key, "") + f"$ {call.name}\n{_text(end)}\n"
    lines: list[Line] = []
    for (name, document), text in texts.items():
        facts = _parsed(tree, name, text)
        parts.append(replace(facts, report=()))
        if not document:  # the documents say again what the tables say, with serial numbers
            lines += facts.report
    numbered = tuple(Line(number, line.text) for number, line in enumerate(lines, start=1))
    whole = merge((HostFacts(drivers=libraries.drivers), *parts))
    devices = join_accelerators(whole.accelerators, _known(libraries, whole, seen))
    return replace(whole, accelerators=devices, report=numbered)


def _known(
    libraries: HostFacts, told: HostFacts, seen: Collection[str]
) -> tuple[Accelerator, ...]:
    """The library's devices that a tool told of as NVIDIA's, or all where no tool told of any.

    Other makers have libraries of that name too: theirs complete nothing of NVIDIA's.
    """
    if not told.accelerators and any(one.vendor in seen for one in libraries.accelerators):
        return libraries.accelerators
    return tuple(
        device
        for device in libraries.accelerators
        if any(device.bdf and same_device(device, one) for one in told.accelerators)
    )


def _plan(tree: Tree, seen: Collection[str], environ: Mapping[str, str]) -> list[_Call]:
    calls: list[_Call] = []
    taken: set[str] = set()
    for tool in asked_tools():
        if tool.program in taken or tool.unless in taken:
            continue
        namesakes = {one.vendor for one in asked_tools() if one.program == tool.program}
        if tool.vendor not in seen and namesakes & set(seen):
            continue  # two makers have given their tools one name
        path, fault = find_program(tree, tool, environ)
        if path is None:
            if fault or tool.vendor in seen:
                tree.missing(f"tools.{tool.program}", fault or f"{tool.program}: not on PATH")
            continue
        taken.add(tool.program)
        for words in (*tool.calls, *tool.documents):
            name = f"{tool.program} {words}".strip()
            document = words in tool.documents
            calls.append(_Call(name, (path, *words.split()), tool, document))
    asked = [one for one in asked_tools() if one.library == _LIBRARIES]
    here = any(one.vendor in seen or one.program in taken for one in asked)
    if here and sys.executable:
        command = (sys.executable, "-I", "-S", "-B", str(_DRIVER_CHILD))
        calls.append(_Call(_LIBRARIES, command, None))
    return calls


def find_program(
    tree: Tree, tool: Tool, environ: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """The tool's path, and where it is not there but a file of its name is, what is wrong.

    Places on PATH that are no absolute path are passed over: nothing of the working folder runs.
    """
    folders = [p for p in environ.get("PATH", "").split(os.pathsep) if os.path.isabs(p)]
    fault = None
    for folder in (*folders, *(tree.on_disk(path) for path in tool.folders)):
        path = os.path.join(folder, tool.program)
        if not os.path.isfile(path):
            continue
        if os.access(path, os.X_OK):
            return path, None
        fault = fault or f"{path}: not executable for this user"
    return None, fault


def _text(end: Ended) -> str:
    """What a program printed that ended by itself; half an answer is none."""
    whole = end.fault is None or end.fault.startswith("ended with")
    return end.output.decode("utf-8", "replace") if whole else ""


def _parsed(tree: Tree, name: str, text: str) -> HostFacts:
    try:
        return parse_report(text)
    except Exception as error:
        # a tool's answer that breaks a parser of ours must not hide all other facts
        tree.missing(f"tools.{name}", f"its answer cannot be read: {error!r}")
        return HostFacts()


def _libraries(output: bytes) -> HostFacts:
    """What `_driver_child` printed; a library may have printed something of its own between."""
    drivers: list[Driver] = []
    devices: list[Accelerator] = []
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        match said:
            case {"component": str(component), "version": str(version), "source": str(source)}:
                drivers.append(Driver(component, version, source))
            case {"index": int(index), "bus": str(bus), "arch": str(arch), "source": str(source)}:
                bdf = normal_bdf(bus)
                devices.append(Accelerator("cuda", index, source, bdf=bdf, arch=arch))
    return HostFacts(drivers=tuple(drivers), accelerators=tuple(devices))
