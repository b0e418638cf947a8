"""Finds what a dotted path names without importing anything of it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from vllm_adapter.files import read_bounded

_SOURCE_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class DottedPathResult:
    """What was found of `module:name`. `problem` is None if it is there.

    `unread`: the module is there, but not as Python source, or takes names from others.
    """

    problem: str | None = None
    unread: bool = False


def find_dotted_path(dotted: str, package: Path | None = None) -> DottedPathResult:
    """Whether the module of `module:name` can be found, and its source has the top-level name.

    `package`: the folder that a path beginning with its name is looked for in, installed or not.
    """
    module, _, path = dotted.partition(":")
    spec = find_module(module, package)
    if spec is None:
        return DottedPathResult(f"there is no module {module}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return DottedPathResult(unread=True)
    try:
        tree = ast.parse(read_bounded(Path(spec.origin), _SOURCE_BYTES), spec.origin)
    except OSError as error:
        return DottedPathResult(f"{spec.origin} cannot be read: {error.strerror}")
    except (RecursionError, MemoryError):  # what Python's parser says of a deep nesting
        return DottedPathResult(f"{spec.origin} is nested too deeply")
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        return DottedPathResult(f"{spec.origin}{line} is not Python: {text}")
    names = set(_names(tree.body))
    wanted = path.partition(".")[0]
    if wanted in names:
        return DottedPathResult()
    if "*" in names or "__getattr__" in names:
        return DottedPathResult(unread=True)
    return DottedPathResult(f"{spec.origin} has no top-level name {wanted}")


def find_module(name: str, package: Path | None = None) -> ModuleSpec | None:
    """The spec of a module; unlike importlib's, parents are searched and not imported."""
    first, *rest = name.split(".")
    if package is not None and first == package.name:
        spec = PathFinder.find_spec(first, [str(package.parent)])
    else:
        try:
            spec = importlib.util.find_spec(first)
        except ValueError:  # a module like __main__, which was loaded without one
            return None
    full = first
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    return spec


def class_body(dotted: str, package: Path | None = None) -> ast.ClassDef | None:
    """The class that `module:Class` names, where its module is Python source and defines it.

    `package` as in `find_dotted_path`.
    """
    module, _, path = dotted.partition(":")
    spec = find_module(module, package)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    except (SyntaxError, ValueError):
        return None
    found = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == path)
    return next(found, None)


def marked_methods(dotted: str, mark: str, package: Path | None = None) -> tuple[str, ...]:
    """Methods of a class under a decorator of that name; none where its source does not tell all.

    `package` as in `find_dotted_path`.
    """
    body = class_body(dotted, package)
    if body is None or _may_inherit(body):
        return ()
    return tuple(
        node.name
        for node in body.body
        if isinstance(node, ast.FunctionDef)
        and any(_last_name(decorator) == mark for decorator in node.decorator_list)
    )


def _may_inherit(body: ast.ClassDef) -> bool:
    """Whether a class may have hooks of a base: core's AdapterSpec has none to give."""
    return any(_last_name(base) not in ("AdapterSpec", "object") for base in body.bases)


def _last_name(node: ast.expr) -> str | None:
    """`mark` of `@mark`, `@module.mark` and `@mark(...)`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def may_implement(plugin: str, hook: str) -> bool:
    """Whether a plug-in's class can have a hook: looked for in its source, without an import."""
    body = class_body(plugin)
    if body is None or _may_inherit(body):
        return True
    return any(isinstance(node, ast.FunctionDef) and node.name == hook for node in body.body)


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """What statements bind; those under `if`, `try` and `with` count, functions' bodies do not."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        for block in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _names(getattr(node, block, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _names(handler.body)
