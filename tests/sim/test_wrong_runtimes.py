"""Wrong C libraries, and right ones of other builds; `tests/runtimes` has them all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtimes"))

import table

pytestmark = pytest.mark.sim
LIBRARIES = table.QUICK["library"]


@pytest.fixture(scope="module")
def lines(c_folder):
    return table.tried("library", c_folder)


@pytest.mark.parametrize("name", [name for name, rule in LIBRARIES.items() if rule])
def test_a_wrong_library_is_seen_by_its_rule(lines, name):
    assert lines[name]["rules"] == LIBRARIES[name]


@pytest.mark.parametrize("name", [name for name, rule in LIBRARIES.items() if not rule])
def test_a_right_library_passes(lines, name):
    assert lines[name]["verdict"] == "survived", lines[name]
