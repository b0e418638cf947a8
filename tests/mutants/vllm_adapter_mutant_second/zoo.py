"""The list of the second set, by the decorators of the first."""

from __future__ import annotations

import dataclasses

from vllm_adapter_mutant import zoo

KERNELS: dict[str, zoo.Kernel] = {}


def mutant(op, family, calls=None, *, shows=None, **entry):
    """As in the first set."""
    return _adder(zoo.mutant(op, family, calls, shows=shows, **entry))


def right(op, **entry):
    """As in the first set."""
    return _adder(zoo.right(op, **entry))


def _adder(first):
    def add(function):
        first(function)
        name = function.__name__
        kernel = zoo.KERNELS.pop(name)
        KERNELS[name] = dataclasses.replace(kernel, run=f"{function.__module__}:{name}")
        return function

    return add
