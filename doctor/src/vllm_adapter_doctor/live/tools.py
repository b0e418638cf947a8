"""Asks the vendors' tools that are here, all at once, and reads their answers as a report.

A tool that hangs, dies, is missing or cannot be started is an entry of `HostFacts.unknown`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.facts import Accelerator, Driver, HostFacts, Line
from vllm_adapter.hostfacts.vendor_files import once, sections, typed
from vllm_adapter_doctor.live.children import ProcessResult, run_all
from vllm_adapter_doctor.live.reader_lines import Lines, parse
from vllm_adapter_doctor.live.readers import VendorReader, find_readers
from vllm_adapter_doctor.report.merge import join_accelerators, merge, same_device
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
    health: tuple[str, ...] = ()


@once
def asked_tools() -> tuple[Tool, ...]:
    """The tools that are asked, of every vendor; one that we can read alone is not."""
    return tuple(
        typed(raw, Tool, vendor=vendor)
        for vendor, every in sections("tools")
        for raw in every
        if raw.get("asked", True)
    )


_POSIX: Final = os.name == "posix"
_FUNCTION_CHILD: Final = Path(__file__).with_name("_function_child.py")


@dataclass(frozen=True, slots=True)
class _Call:
    """One child: what it is called in messages, its command, and what it asks.

    That is a tool, the reader of an adapter, or the library's function for a component's version.
    """

    name: str
    command: tuple[str, ...]
    tool: Tool | None = None
    document: bool = False
    reader: VendorReader | None = None
    component: str = ""


def ask_tools(
    tree: Tree,
    seen: Collection[str],
    environ: Mapping[str, str],
    *,
    timeout_s: float,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
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
        on_progress(count, len(calls))

    settings = {**environ, "LC_ALL": "C", "LANGUAGE": "C", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = run_all(
        [call.command for call in calls], timeout_s=timeout_s, environ=settings, done=one_ended
    )
    texts: dict[tuple[str, bool], str] = {}
    parts: list[HostFacts] = []
    drivers: list[Driver] = []
    read: list[Accelerator] = []
    for call, end in zip(calls, ended, strict=True):
        if end.fault:
            tree.missing(f"tools.{call.name}", f"{call.name} {end.fault}")
        if call.reader is not None:
            said = _read(tree, call.reader, end)
            drivers += said.drivers
            read += said.accelerators
        elif call.tool is None:
            drivers += _version(call, end.output)
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
    whole = merge((HostFacts(drivers=tuple(drivers)), *parts))
    devices = join_accelerators(whole.accelerators, _known(read, whole, seen))
    return replace(whole, accelerators=devices, report=numbered)


def _known(
    read: Sequence[Accelerator], by_tools: HostFacts, seen: Collection[str]
) -> tuple[Accelerator, ...]:
    """The readers' devices that a tool listed as that vendor's, or all where no tool listed any.

    Other makers have libraries of a vendor's name too: theirs complete nothing of that vendor's.
    """
    if not by_tools.accelerators:
        return tuple(device for device in read if device.vendor in seen)
    return tuple(
        device for device in read if any(same_device(device, one) for one in by_tools.accelerators)
    )


def _read(tree: Tree, reader: VendorReader, end: ProcessResult) -> Lines:
    """What a reader says, where it ended well; else nothing, and why is unknown."""
    said = parse(end.output, reader.vendor, reader.module)
    fault = next(iter(said.wrong), None) or said.fault
    if fault and not end.fault:
        tree.missing(f"tools.{reader.module}", f"{said.source}: {fault}")
    return (
        Lines()
        if said.wrong
        else replace(said, accelerators=() if end.fault else said.accelerators)
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
    if sys.executable:
        here = {one.vendor for one in asked_tools() if one.program in taken} | set(seen)
        calls += _libraries(tree, here)
    return calls


def _libraries(tree: Tree, here: Collection[str]) -> Iterator[_Call]:
    """The readers of adapters, and functions that tell a version, of the vendors that are here."""
    readers, left_out = find_readers()
    for sentence in left_out:
        tree.missing("tools.readers", sentence)
    for vendor, reader in readers.items():
        if vendor in here:
            yield _Call(reader.module, reader.command, reader=reader)
    for vendor, every in sections("drivers", "functions"):
        for raw in every if vendor in here else ():
            words = (raw["library"], raw["function"])
            command = (sys.executable, "-I", "-S", "-B", str(_FUNCTION_CHILD), *words)
            yield _Call(raw["library"], command, component=raw["component"])


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


def _text(end: ProcessResult) -> str:
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


def _version(call: _Call, output: bytes) -> Iterator[Driver]:
    """The version that `_function_child` printed; a library may have printed something before."""
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        match said:
            case {"number": int(number)}:
                text = f"{number // 1000}.{number % 1000 // 10}"
                yield Driver(call.component, text, call.name)
