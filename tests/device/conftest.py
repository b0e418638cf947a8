"""Tests on a device: what needs a compiler, figures for the terminal, adapters made of entries."""

from __future__ import annotations

import itertools
import os
import shutil

import op_kernels
import pytest

COMPILER = os.environ.get("CXX", "g++")
"""What inductor calls."""


def pytest_collection_modifyitems(config, items):
    if shutil.which(COMPILER):
        return
    left_out = [item for item in items if item.get_closest_marker("compiler")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter):
    if not shutil.which(COMPILER):
        terminalreporter.write_line(
            f"The tests marked `compiler` were left out: there is no C++ compiler {COMPILER}."
        )
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == "figures" and report.when == "call":
                    terminalreporter.section(report.nodeid.rpartition("::")[2], sep="-")
                    terminalreporter.write_line(text)


@pytest.fixture
def figures(record_property):
    """Prints a text at the end of the run, whether the test passes or not."""
    return lambda text: record_property("figures", text)


_numbers = itertools.count()


@pytest.fixture
def calls():
    """What the kernels of `op_kernels` were called for, in order."""
    op_kernels.CALLS.clear()
    return op_kernels.CALLS


@pytest.fixture
def use(monkeypatch, fresh):
    """use(**operators) puts an adapter with these entries in use on the CPU; gives its name.

    The name is one that no test had before: an overload keeps its kernel as long as the process.
    `run` and the like name functions of `op_kernels`.
    """
    from vllm_adapter.contract.capability import parse_capability
    from vllm_adapter.engine.ops.providers import PROVIDERS

    for variable in ("VA_FALLBACK", "VA_OPS"):
        monkeypatch.delenv(variable, raising=False)

    def entry(given):
        dotted = {k: f"op_kernels:{given[k]}" for k in PATHS if k in given}
        return {"support": "full", "dtypes": ["float32"], **given, **dotted}

    def to_device(name=None, *, kernels_only=False, **operators):
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

    return to_device


PATHS = ("run", "plan", "prepare_weights")
