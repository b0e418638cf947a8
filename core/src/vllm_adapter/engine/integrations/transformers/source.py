"""Whether code that would run is transformers' and torch's own, or was replaced while running."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from vllm_adapter.engine.integrations.transformers.binding_snapshot import BindingSnapshot

ROOTS: Final = ("torch", "transformers")
RUNS: Final = frozenset(
    {"forward", "__call__", "_call_impl", "_wrapped_call_impl", "__getattr__", "__getattribute__"}
)
"""What a call of a module goes through."""
FOLLOWED: Final = (
    ".models.",
    ".masking_utils",
    ".integrations.",
    ".activations",
    ".pytorch_utils",
)
"""Modules of transformers whose functions are followed into those that they call."""


class AlteredModel(Exception):
    """A model is not what transformers makes; the text says where, and ends without a period."""


class CodeCheck:
    """Checks code, and notes in a watch every name that it went through."""

    def __init__(self, watch: BindingSnapshot) -> None:
        self._watch = watch
        self._seen: set[Any] = set()

    def check_class(self, kind: type, name: str) -> None:
        """The code that a call of a module of this class goes through.

        Raises:
            Altered: a part is not the library's own; `name` is the module's path.
        """
        if kind in self._seen:
            return
        self._seen.add(kind)
        names = RUNS | self.names_read(kind)
        for base in kind.__mro__:
            library = base.__module__.partition(".")[0] in ROOTS
            present = names & vars(base).keys()
            if base is object or not (present or library):
                continue
            home = sys.modules.get(base.__module__)
            if not library or getattr(home, base.__qualname__, None) is not base:
                raise AlteredModel(f"{name} is of the class {base.__module__}.{base.__qualname__}")
            for attribute in names:
                value = vars(base).get(attribute)
                function = wrapped(value)
                if function is not None or attribute in ("forward", "__call__"):
                    shown = f"{base.__qualname__}.{attribute}"
                    self._watch.note(vars(base), attribute, value, shown)
                if function is None or attribute not in present:
                    continue
                own = base is torch.nn.Module or function.__qualname__ == (
                    f"{base.__qualname__}.{attribute}"
                )
                if not (own and self._is_own(value, base.__module__)):
                    raise AlteredModel(f"{base.__qualname__}.{attribute} was replaced")
                if base is not torch.nn.Module:
                    self._follow(function)

    def check_attention(self, kind: type, asked: str) -> None:
        """What transformers' tables give for an attention implementation.

        Raises:
            Altered: something that was put there.
        """
        modeling = vars(sys.modules[kind.__module__])
        masking = importlib.import_module("transformers.masking_utils")
        for space, table in (
            (modeling, "ALL_ATTENTION_FUNCTIONS"),
            (vars(masking), "ALL_MASK_ATTENTION_FUNCTIONS"),
        ):
            registered = space.get(table)
            if registered is None:
                continue
            value = registered.get(asked)
            self._watch.note(registered, asked, value, f"{asked!r} in {table}")
            function = wrapped(value)
            if value is None:
                continue
            if function is None or not self._is_own(value, function.__module__):
                raise AlteredModel(f"{asked!r} in {table} was replaced")
            self._follow(function)

    @staticmethod
    def names_read(kind: type) -> frozenset[str]:
        """Names that the class's `forward` mentions."""
        function = wrapped(getattr(kind, "forward", None))
        return frozenset(_names(function.__code__)) if function is not None else frozenset()

    @staticmethod
    def is_in_its_file(function: types.FunctionType) -> bool:
        """Whether a function was written where it says that it was."""
        home = sys.modules.get(function.__module__)
        return home is not None and function.__code__.co_filename == home.__file__

    def _is_own(self, value: Any, home: str) -> bool:
        """Whether a function, and all that wraps it, are a library's own."""
        file = getattr(sys.modules.get(home), "__file__", None)
        for layer in _layers(value):
            if not _in_library(layer.__code__.co_filename):
                return False
        function = wrapped(value)
        return function is not None and function.__code__.co_filename == file

    def _follow(self, function: types.FunctionType) -> None:
        """The globals that a function mentions.

        Raises:
            Altered: one is not what the source says.
        """
        if function in self._seen:
            return
        self._seen.add(function)
        space = function.__globals__
        home = str(space.get("__name__"))
        names = set(_names(function.__code__))
        for name in sorted(names & space.keys()):
            value = space[name]
            if isinstance(value, types.ModuleType):
                if value.__name__.partition(".")[0] == "torch":
                    self._check_torch(value, names)
                continue
            if wrapped(value) is not None:
                self._watch.note(space, name, value, f"{home}.{name}")
            self._check_global(home, name, value)

    def _check_global(self, home: str, name: str, value: Any) -> None:
        origin = origins(home).get(name)
        if origin is not None:
            source, original = origin
            if source != home:
                there = sys.modules.get(source) or importlib.import_module(source)
                if getattr(there, original, value) is not value:
                    raise AlteredModel(f"{home}.{name} was replaced")
        function = wrapped(value)
        if function is None:
            return  # data and classes: equal to where they come from is all that can be said
        where = function.__module__
        named = function.__qualname__ == (origin[1] if origin else name)
        local = origin is None or origin[0] != home or where == home
        if not (named and local and self._is_own(value, where)):
            raise AlteredModel(f"{home}.{name} was replaced")
        if any(part in f".{where}" for part in FOLLOWED):
            self._follow(function)

    def _check_torch(self, module: types.ModuleType, names: set[str]) -> None:
        """Functions of torch that are mentioned: torch's own, under their own names."""
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            if isinstance(value, types.ModuleType):
                if value.__name__ == f"{module.__name__}.{name}" and name in ("nn", "functional"):
                    self._check_torch(value, names)
                continue
            if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
                self._watch.note(vars(module), name, value, f"{module.__name__}.{name}")
            if isinstance(value, types.FunctionType):
                if not all(_in_library(f.__code__.co_filename) for f in _layers(value)):
                    raise AlteredModel(f"{module.__name__}.{name} was replaced")
            elif callable(value) and not isinstance(value, type):
                other = getattr(value, "__name__", name) != name
                foreign = type(value).__module__.partition(".")[0] not in ("builtins", "torch")
                if other or foreign:
                    raise AlteredModel(f"{module.__name__}.{name} was replaced")


def wrapped(value: Any) -> types.FunctionType | None:
    """The function under decorators, or None where there is none."""
    return next(reversed(list(_layers(value))), None)


def _layers(value: Any) -> Iterator[types.FunctionType]:
    """A function and those that it wraps, the outermost first."""
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        value = value.__func__
    while isinstance(value, types.FunctionType):
        yield value
        value = vars(value).get("__wrapped__")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


@functools.cache
def _folders() -> tuple[str, ...]:
    modules = (importlib.import_module(root) for root in ROOTS)
    return tuple(str(Path(str(module.__file__)).parent) + "/" for module in modules)


def _in_library(file: str) -> bool:
    # functools wraps what is cached, contextlib what is a context manager.
    python = (functools.__file__, sys.modules["contextlib"].__file__)
    return file.startswith(_folders()) or file in python


@functools.cache
def origins(module: str) -> dict[str, tuple[str, str]]:
    """Names at a module's top level -> (module, name) that its source binds them to."""
    path = getattr(sys.modules.get(module), "__file__", None)
    package = getattr(sys.modules.get(module), "__package__", None)
    if path is None or not Path(path).is_file():
        return {}
    found: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(path).read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            resolved = importlib.util.resolve_name(source, package)
            found |= {name.asname or name.name: (resolved, name.name) for name in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = (module, node.name)
    return found
