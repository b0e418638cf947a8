"""Fixtures for the tests of all packages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode puts no folder of tests there

from fake_dist import Site

# A shared machine may be slow, and no test asserts a time.
settings.register_profile("no_deadline", deadline=None)
settings.register_profile("fast", settings.get_profile("no_deadline"), max_examples=10)
settings.load_profile("no_deadline")


def _as_it_was():
    """Commands that are called in this process may set variables: what comes next has none."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


_of_a_test = pytest.fixture(_as_it_was, autouse=True, name="_of_a_test")
_of_a_file = pytest.fixture(_as_it_was, autouse=True, scope="module", name="_of_a_file")


@pytest.fixture
def fresh():
    """The registries of this process are empty before the test, and after it."""
    from vllm_adapter.engine.registries import reset

    reset()
    yield
    reset()


@pytest.fixture
def site(tmp_path):
    """An empty site folder, and processes that see it beside what is really installed."""
    path = tmp_path / "site"
    path.mkdir()
    return Site(path)
