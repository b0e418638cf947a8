"""The list of kernels: the modules of this package add theirs by decorator when imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("numerics", "sizes", "attention", "layouts", "state")
RIGHT = "right"

Calls = Callable[[], Iterable[tuple[Any, ...]]]


@dataclass(frozen=True)
class Kernel:
    """A mutant, or with family `right` a kernel that has to pass."""

    name: str
    op: str
    family: str
    sentence: str
    run: str
    function: Callable[..., Any]
    calls: Calls | None
    """Calls in turn, in one of which a mutant's result is wrong."""
    shows: Callable[[], bool] | None
    """Where no result of one call can show it: whether the fault was seen."""
    entry: Mapping[str, Any]
    """What the operator's entry in the descriptor has beside `run`."""


KERNELS: dict[str, Kernel] = {}


def mutant(op, family, calls=None, *, shows=None, **entry):
    """Adds a wrong kernel of `op`; its docstring says what is wrong with it."""
    assert family in FAMILIES and (calls is None) != (shows is None)
    return _adder(op, family, calls, shows, entry)


def right(op, **entry):
    """Adds a kernel of `op` that is right and of an unlike build."""
    return _adder(op, RIGHT, None, None, entry)


def _adder(op, family, calls, shows, entry):
    def add(function):
        name = function.__name__
        assert name not in KERNELS, f"{name} is there twice"
        module = function.__module__.rpartition(".")[2]
        run = f"vllm_adapter_mutant.{module}:{name}"
        sentence = " ".join((function.__doc__ or "").split())
        KERNELS[name] = Kernel(name, op, family, sentence, run, function, calls, shows, entry)
        return function

    return add
