"""Versions of drivers, firmware and toolkits by the files that they leave: no SDK is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.facts import Driver
from vllm_adapter.hostfacts.vendor_files import once, sections, typed

_NUMBER: Final = re.compile(r"\d+(?:\.\d+)+(?:[.-]?(?:rc|alpha|beta|RC|SPC|T)\d*(?:\.\w+)*)?")

Reader = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class VersionFile:
    """Where the version of a component is written.

    `files` are paths, or names in the folders that `variables` name and in the `usual` ones; a
    star stands for any name. Of several files, the first that says a version is believed. Without
    `version` it is the first number with a dot in it; `json` are paths to it in a
    document in that form. With `unless_known` the file is read only where no other told the
    version.
    """

    component: str
    files: tuple[str, ...]
    version: re.Pattern[str] | None = None
    json: tuple[tuple[str, ...], ...] = ()
    variables: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    unless_known: bool = False


@once
def version_files() -> tuple[VersionFile, ...]:
    """Every vendor's, in the order of rank."""
    every = (raw for _, files in sections("drivers", "files") for raw in files)
    return tuple(typed(raw, VersionFile, **raw.get("folders", {})) for raw in every)


def read_drivers(
    tree: Tree, modules: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[Driver, ...]:
    """What the files of this machine say; `modules` are the loaded ones, by the kernel's name."""
    found = [
        _module(tree, module, component, modules)
        for _, every in sections("drivers", "modules")
        for module, component in every.items()
    ]
    for one in version_files():
        if not (one.unless_known and any(d and d.component == one.component for d in found)):
            found.append(_first(tree, one.component, _paths(tree, environ, one), _reader(one)))
    return tuple(dict.fromkeys(driver for driver in found if driver is not None))


def _paths(tree: Tree, environ: Mapping[str, str], one: VersionFile) -> list[str]:
    """The files in the folders that variables name, then in the usual ones."""
    named = [environ[name] for name in one.variables if environ.get(name, "").startswith("/")]
    found: list[str] = []
    for home in [f"{home.rstrip('/')}/" for home in (*named, *one.usual)] or [""]:
        for file in one.files:
            several = "*" in file
            found += sorted(tree.matching(_literal(home) + file)) if several else [home + file]
    return found


def _reader(one: VersionFile) -> Reader:
    plain = _by(one.version) if one.version else _number
    return (lambda text: _of_json(text, one.json, plain)) if one.json else plain


def _first(
    tree: Tree, component: str, paths: tuple[str, ...] | list[str], read: Reader
) -> Driver | None:
    """The version in the first of the files that is there and says one."""
    for path in paths:
        text = tree.text(path, 1 << 16)
        if text is None:
            continue
        version = read(text)
        if version:
            return Driver(component, version, path)
        tree.missing(f"drivers.{component}", f"{path}: a version")
    return None


def _by(pattern: re.Pattern[str]) -> Reader:
    def read(text: str) -> str | None:
        found = pattern.search(text)
        return found[1] if found else None

    return read


def _number(text: str) -> str | None:
    """The first number with a dot in it; a build's number behind a dash is not of the version."""
    found = _NUMBER.search(text)
    return found[0] if found else None


def _module(tree: Tree, module: str, component: str, loaded: tuple[str, ...]) -> Driver | None:
    name = module.replace("-", "_")
    path = f"/sys/module/{name}/version"
    found = _first(tree, component, (path,), lambda text: text.strip() or None)
    if found is None and name in loaded:
        tree.missing(f"drivers.{component}", f"{path}: the kernel's own module has none")
    return found


def _of_json(text: str, places: tuple[tuple[str, ...], ...], plain: Reader) -> str | None:
    """Of a document, at the first place that holds a version; of other text as `plain` reads."""
    if not text.lstrip().startswith("{"):
        return plain(text)
    try:
        document = json.loads(text)
    except ValueError:
        return None
    for place in places:
        value = document
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            return value
    return None


def _literal(path: str) -> str:
    """A path of a variable, for use inside a glob."""
    return re.sub(r"([*?[])", r"[\1]", path)
