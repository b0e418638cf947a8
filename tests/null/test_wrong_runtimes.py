"""Wrong runtimes of the host, and right ones of other builds; `tests/runtimes` has them all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtimes"))

import table

pytestmark = pytest.mark.null
HOST = table.QUICK["host"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    return table.tried("host", tmp_path_factory.mktemp("runtimes"))


def test_they_are_as_frozen():
    assert table.digests() == table.frozen()


def test_the_first_run_is_of_known_runtimes():
    found = table.first_run()
    assert {line["verdict"] for line in found.values()} <= {"caught", "survived", "undecided"}
    assert all(line["rules"] for line in found.values() if line["verdict"] == "caught")


@pytest.mark.parametrize("name", [name for name, rule in HOST.items() if rule])
def test_a_wrong_runtime_is_seen_by_its_rule(lines, name):
    assert lines[name]["rules"] == HOST[name]


@pytest.mark.parametrize("name", [name for name, rule in HOST.items() if not rule])
def test_a_right_runtime_passes(lines, name):
    assert lines[name]["verdict"] == "survived", lines[name]
