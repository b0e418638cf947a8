"""What a package's manifest and descriptors name: Python paths, looked for without imports, and
the C library, asked in a child.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from vllm_adapter.cli.checks import FileCheck, SchemaFault, check_document, read_document
from vllm_adapter.cli.packages import MANIFEST
from vllm_adapter.contract.decision import LIBRARY, library_fault
from vllm_adapter.contract.dotted import find_dotted_path, marked_methods
from vllm_adapter.contract.hooks import not_called, only_not_called
from vllm_adapter.files import read_json, shown

_KEYS: Final = ("run", "plan", "prepare_weights", "supports", "tune")
_MEANING: Final = (
    "A path is `module:name`, or `library:OPERATOR` for a function of the device's C library; a "
    "wrong one fails when a layer is built."
)
_ALONE: Final = (
    "A plug-in of hooks that nothing calls yet does nothing: leave it out until a release calls "
    "one of them."
)
_LEVELS_UP: Final = 4


def check_file_and_paths(file: Path) -> FileCheck:
    """As `check_file`; where the file keeps its schema, a path that leads nowhere is a fault too.

    A descriptor outside any adapter's package names paths of another machine: none is looked for.
    """
    raw = read_document(file)
    result = check_document(raw, str(file))
    if result.faults:
        return result
    faults = tuple(_path_faults(file, result.kind, raw))
    hooks = _hooks(file, result.kind, raw)
    waiting = not_called(hooks)
    if waiting is not None and only_not_called(hooks):
        fault = SchemaFault("/plugin", waiting, "a hook that this release calls", _ALONE)
        return replace(result, faults=(*faults, fault))
    return replace(result, faults=faults, notes=() if waiting is None else (waiting,))


def _hooks(file: Path, kind: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The hooks of a manifest's plug-in, as far as its source shows them."""
    package = _package_of(file)
    if kind != "manifest" or "plugin" not in raw or package is None:
        return ()
    return marked_methods(raw["plugin"], "hookimpl", package)


def _path_faults(file: Path, kind: str, raw: Mapping[str, Any]) -> Iterator[SchemaFault]:
    package = _package_of(file)
    if package is None:
        return
    if kind == "manifest":
        yield from _library_faults(package, raw.get("device", {}).get("library"))
    for pointer, dotted, entry in _named(kind, raw):
        if entry is not None and dotted.startswith(LIBRARY):
            library = (
                read_json(package / MANIFEST, "the manifest").get("device", {}).get("library")
            )
            problem = library_fault(pointer.split("/")[2], dotted, entry.get("plan"), library)
        else:
            problem = find_dotted_path(dotted, package).problem
        if problem is not None:
            yield SchemaFault(
                pointer, f"{shown(dotted)}: {problem}", "a path that is there", _MEANING
            )


def _library_faults(package: Path, named: str | None) -> Iterator[SchemaFault]:
    """Why core would not load the package's library; a source tree may not have built it yet."""
    from vllm_adapter.discovery.probe.library import check_library
    from vllm_adapter.errors import LibraryError

    if named is None or not (package / named).exists() or not sys.platform.startswith("linux"):
        return
    try:
        check_library(package / named)
    except LibraryError as error:
        yield SchemaFault(
            "/device/library", error.message, "a library that core can load", error.hint
        )


def _package_of(file: Path) -> Path | None:
    """The folder of the adapter's package that a file is in; None if it is in none."""
    above = file.resolve().parents[:_LEVELS_UP]
    return next((folder for folder in above if (folder / MANIFEST).is_file()), None)


def _named(
    kind: str, raw: Mapping[str, Any]
) -> Iterator[tuple[str, str, Mapping[str, Any] | None]]:
    """Every path with its JSON pointer, and the operator's entry that may name a library."""
    if kind == "manifest" and "plugin" in raw:
        yield "/plugin", raw["plugin"], None
    if kind != "capability":
        return
    for name, declared in raw.get("operators", {}).items():
        if name == "source":
            continue
        several = isinstance(declared, list)
        for i, entry in enumerate(declared if several else [declared]):
            at = f"/operators/{name}/{i}" if several else f"/operators/{name}"
            for key in _KEYS:
                if entry.get(key) is not None:
                    yield f"{at}/{key}", entry[key], entry if key == "run" else None
