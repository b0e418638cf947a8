"""L0: the capability descriptors. One case a file, or one for each thing that a file names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from vllm_adapter.contract.capability import load_capability
from vllm_adapter.contract.decision import LIBRARY, library_fault
from vllm_adapter.contract.dotted import find_dotted_path
from vllm_adapter.errors import CapabilityError, InputError
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case, Failure, NotDeclaredCase, Observation, rule
from vllm_adapter_conformance.base.target import Target

SECTIONS: Final = ("compute_units", "memory", "dma", "execution", "numerics", "kv")
"""The sections that hold figures."""


def descriptor_files(target: Target) -> dict[str, Path]:
    """The package's descriptors by their path in it; the default place if the manifest is bad."""
    record = target.record
    assert record.path is not None
    manifest = record.manifest
    files = (
        manifest.capability_files()
        if manifest is not None
        else sorted(record.path.glob("capabilities/*.json"))
    )
    return {file.relative_to(record.path).as_posix(): file for file in files}


def _files(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name, file in descriptor_files(target).items():
        yield Case(name, {"file": str(file)})


@rule(
    "L0.descriptor.schema",
    summary="each descriptor keeps its schema, and core can read it",
    why="The descriptor decides which kernels run, which cases are tested and how a model is "
    "planned. A misspelt field would be a silent gap in all three, so unknown words are refused. "
    "Run `vllm-adapter validate` on the file: it names every fault with the field's meaning.",
    cases=_files,
)
def check_schema(bench: Bench, case: Case) -> None:
    """Holds the file against the JSON Schema, and reads it as core does."""
    from vllm_adapter.cli.checks import check_file

    file = Path(case.params["file"])
    try:
        faults = check_file(file).faults
    except InputError as error:
        raise Failure("a descriptor that can be read", error.message) from error
    if faults:
        raise Failure(
            f"{case.id} to keep its schema",
            f"{len(faults)} fault(s), first {faults[0]}",
            detail="\n".join(map(str, faults)),
        )
    try:
        load_capability(file)
    except CapabilityError as error:
        raise Failure("core to read what the schema allows", error.message) from error


@rule(
    "L0.descriptor.sources",
    summary="every figure says where it is from",
    why="Plans and certificates are worth what their figures are worth. A figure without a "
    "source cannot be checked by anybody. Give the section a `source`, or the figure an entry in "
    "`sources`; write null for what is unknown, and `assumed` for a guess.",
    cases=_files,
    needs=("L0.descriptor.schema",),
)
def check_sources(bench: Bench, case: Case) -> Observation:
    """Asks the source of each figure that is not null."""
    capability = load_capability(Path(case.params["file"]))
    kinds = []
    for section in SECTIONS:
        for pointer in figures(capability.raw.get(section, {}), f"/{section}"):
            try:
                kinds.append(capability.source(pointer).kind)
            except CapabilityError as error:
                raise Failure(f"a source of {pointer}", error.message) from error
    return Observation(note=f"{len(kinds)} figures, {kinds.count('assumed')} assumed")


def figures(value: Any, pointer: str) -> Iterator[str]:
    """Pointers of a section's figures."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key != "source":
                yield from figures(item, f"{pointer}/{key}")
    elif value is not None:
        yield pointer


def _operators(target: Target) -> Iterator[Case | NotDeclaredCase]:
    for name, file in descriptor_files(target).items():
        try:
            operators = load_capability(file).operators
        except CapabilityError:
            yield Case(name)  # blocked by the schema's rule
            continue
        if not operators:
            yield NotDeclaredCase(name, "/operators", "no operator is declared")
        for op in operators:
            yield Case(f"{name} {op}", {"file": str(file), "op": op})


@rule(
    "L0.descriptor.operators",
    summary="every declaration of an operator can be met by some case",
    why="A declaration with limits that contradict each other covers nothing, though it reads "
    "like coverage: min above max, or no multiple between them. Correct the limits, or say "
    "`not_implemented`.",
    cases=_operators,
    needs=("L0.descriptor.schema",),
)
def check_operators(bench: Bench, case: Case) -> Observation:
    """Looks for a value that keeps the bounds of each limit."""
    entries = load_capability(Path(case.params["file"])).operators[case.params["op"]]
    for entry in entries:
        for fact, bounds in entry.limits.items():
            if isinstance(bounds, tuple):
                continue
            step = bounds.get("multiple_of", 0)
            least = bounds.get("min", 0)
            least = math.ceil(least / step) * step if step else least
            if least > bounds.get("max", math.inf):
                raise Failure(
                    f"a value that keeps {entry.pointer}/limits/{fact}", f"none: {dict(bounds)}"
                )
    words = ", ".join(dict.fromkeys(entry.support for entry in entries))
    return Observation(note=f"{len(entries)} entries: {words}")


def _paths(target: Target) -> Iterator[Case | NotDeclaredCase]:
    manifest = target.record.manifest
    found: dict[str, str] = {}
    if manifest is not None and manifest.plugin is not None:
        found[manifest.plugin] = "adapter.json/plugin"
    for name, file in descriptor_files(target).items():
        try:
            operators = load_capability(file).operators
        except CapabilityError:
            continue
        for entries in operators.values():
            for entry in entries:
                for key in ("run", "plan", "prepare_weights", "supports", "tune"):
                    dotted = getattr(entry, key)
                    if dotted is not None and not dotted.startswith(LIBRARY):
                        found.setdefault(dotted, f"{name}{entry.pointer}/{key}")
    if not found:
        yield NotDeclaredCase("paths", "/operators", "nothing names a Python path")
    for dotted, where in found.items():
        yield Case(dotted, {"path": dotted, "where": where})


@rule(
    "L0.descriptor.paths",
    summary="every path of a plug-in or kernel names a module and a name that are there",
    why="A path with a typing error fails when a layer is built, in the middle of loading a "
    "model. The module is looked for without being imported, so that this holds on any box. "
    "Correct the path, or ship the module.",
    cases=_paths,
    needs=("L0.descriptor.schema",),
)
def check_path(bench: Bench, case: Case) -> Observation:
    """Finds the module, and the name in its source."""
    found = find_dotted_path(case.params["path"])
    if found.problem is not None:
        raise Failure(f"{case.params['path']} ({case.params['where']}) to be there", found.problem)
    return Observation(note="not Python source: the name was not looked for" * found.unread)


def _library_entries(target: Target) -> Iterator[Case | NotDeclaredCase]:
    named = False
    for name, file in descriptor_files(target).items():
        try:
            operators = load_capability(file).operators
        except CapabilityError:
            continue
        for op, entries in operators.items():
            if any(entry.library_function is not None for entry in entries):
                named = True
                yield Case(f"{name} {op}", {"file": str(file), "op": op}, f"/operators/{op}/run")
    if not named:
        yield NotDeclaredCase("library", "/operators", "no entry names a library's function")


@rule(
    "L0.descriptor.library",
    summary="an entry that a C library runs names the function of its own operator",
    why="The functions of the ABI have one struct of arguments an operator, so that "
    "`library:rms_norm` can run rms_norm and nothing else. The library is the one that the "
    "manifest's device names, and core plans its steps. Whether the function is there, and for "
    "which dtypes, is asked of the library itself on the device: rule L2.library.offers.",
    cases=_library_entries,
    needs=("L0.descriptor.schema",),
)
def check_library(bench: Bench, case: Case) -> None:
    """Holds each entry against the manifest and the operator's name."""
    manifest = bench.target.record.manifest
    section = manifest.device if manifest else None
    library = section.library if section else None
    op = case.params["op"]
    for entry in load_capability(Path(case.params["file"])).operators[op]:
        if entry.library_function is None:
            continue
        assert entry.run is not None
        fault = library_fault(op, entry.run, entry.plan, library)
        if fault is not None:
            raise Failure(
                f"{entry.pointer}/run to name what can run {op}", f"{entry.run}: {fault}"
            )
