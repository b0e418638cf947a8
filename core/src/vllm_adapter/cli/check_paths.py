"""The Python paths that a package's manifest and descriptors name, looked for without imports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from vllm_adapter.cli.checks import Checked, SchemaFault, check_document
from vllm_adapter.cli.packages import MANIFEST
from vllm_adapter.files import read_json, shown
from vllm_adapter.paths import look

_KEYS: Final = ("run", "plan", "prepare_weights", "supports")
_MEANING: Final = "A path is `module:name`; a wrong one fails when a layer is built."
_LEVELS_UP: Final = 4


def check_file_and_paths(file: Path) -> Checked:
    """As `check_file`; where the file keeps its schema, a path that leads nowhere is a fault too.

    A descriptor outside any adapter's package names paths of another machine: none is looked for.
    """
    raw = read_json(file, "the file")
    result = check_document(raw, str(file))
    if result.faults:
        return result
    return replace(result, faults=tuple(_path_faults(file, result.kind, raw)))


def _path_faults(file: Path, kind: str, raw: Mapping[str, Any]) -> Iterator[SchemaFault]:
    package = _package_of(file)
    if package is None:
        return
    for pointer, dotted in _named(kind, raw):
        problem = look(dotted, package).problem
        if problem is not None:
            yield SchemaFault(
                pointer, f"{shown(dotted)}: {problem}", "a path that is there", _MEANING
            )


def _package_of(file: Path) -> Path | None:
    """The folder of the adapter's package that a file is in; None if it is in none."""
    above = file.resolve().parents[:_LEVELS_UP]
    return next((folder for folder in above if (folder / MANIFEST).is_file()), None)


def _named(kind: str, raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every path with its JSON pointer."""
    if kind == "manifest" and "plugin" in raw:
        yield "/plugin", raw["plugin"]
    if kind != "capability":
        return
    for name, declared in raw.get("operators", {}).items():
        if name == "source":
            continue
        several = isinstance(declared, list)
        for i, entry in enumerate(declared if several else [declared]):
            at = f"/operators/{name}/{i}" if several else f"/operators/{name}"
            yield from ((f"{at}/{key}", entry[key]) for key in _KEYS if entry.get(key) is not None)
