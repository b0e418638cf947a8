"""Fixtures for tests of operators: adapters made of a descriptor, calls that were made."""

from __future__ import annotations

import itertools

import op_kernels
import pytest

_numbers = itertools.count()


@pytest.fixture
def calls():
    """What the kernels of `op_kernels` were called for, in order."""
    op_kernels.CALLS.clear()
    return op_kernels.CALLS


@pytest.fixture
def use(monkeypatch):
    """use(**operators) puts an adapter with these entries in use on the CPU; gives its name.

    The name is one that no test had before: an overload keeps its kernel as long as the process.
    `run` and the like name functions of `op_kernels`.
    """
    from vllm_adapter.capability import parse_capability
    from vllm_adapter.engine.ops.providers import PROVIDERS

    for variable in ("VA_FALLBACK", "VA_OPS"):
        monkeypatch.delenv(variable, raising=False)
    PROVIDERS.clear()

    def entry(given):
        dotted = {k: f"op_kernels:{given[k]}" for k in PATHS if k in given}
        return {"support": "full", "dtypes": ["float32"], **given, **dotted}

    def put(name=None, *, kernels_only=False, **operators):
        name = name or f"acme{next(_numbers)}"
        listed = {
            op: [entry(e) for e in given] if isinstance(given, list) else entry(given)
            for op, given in operators.items()
        }
        raw = {
            "schema": "vllm-adapter/capability/1.0",
            "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "cpu"},
            "operators": listed,
        }
        capability = parse_capability(raw, name)
        PROVIDERS.use(name, capability, "cpu", kernels_only=kernels_only)
        return name

    yield put
    PROVIDERS.clear()


PATHS = ("run", "plan", "prepare_weights")
