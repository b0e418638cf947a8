"""Tests on a device: what needs a compiler, and figures that go to the terminal."""

from __future__ import annotations

import os
import shutil

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
