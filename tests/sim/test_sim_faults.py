"""A model run that meets a fault: one typed error or the right tokens, and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.sim, pytest.mark.slow]

CHILD = Path(__file__).with_name("sim_fault_child.py")
LIMIT_S = 270
"""The child ends itself before, with a traceback of where it hangs."""


@pytest.fixture
def turns(sim_path):
    """turns(SIM_FAULT, N): how each of N runs of a tiny Llama ended, in one process."""

    def run(fault, number):
        done = subprocess.run(
            [sys.executable, str(CHILD), str(number)],
            env={
                **os.environ,
                "PYTHONPATH": str(CHILD.parents[1]),
                "SIM_FAULT": fault,
                "VA_LIBRARY": str(sim_path),
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert not done.returncode, done.stderr[-4000:]
        found = json.loads(done.stdout)
        assert len(found) == number
        for turn in found:
            assert turn["typed"], turn
            assert (turn["error"] is None) == (turn["right"] is True), turn
        return found

    return run


def errors(found):
    return {turn["error"] for turn in found}


def nothing_left(found):
    return all(turn["live"] == 0 for turn in found)


def test_a_failed_launch_ends_the_run_and_the_next_one_is_right(turns):
    found = turns("launch@700/3000", 6)
    assert errors(found) == {"LaunchFailed", None}
    assert nothing_left(found)


def test_memory_that_runs_out_ends_the_run_and_the_next_one_is_right(turns):
    found = turns("oom@20/3000", 6)
    assert errors(found) == {"OutOfMemoryError", None}
    assert nothing_left(found)


def test_slow_and_corrupted_copies_are_mended(turns):
    found = turns("corrupt@3/50,slow:1", 2)
    assert errors(found) == {None}
    assert nothing_left(found)


def test_copies_that_stay_corrupted_are_an_error_and_never_a_token(turns):
    found = turns("corrupt@40+", 2)
    assert errors(found) == {"LaunchFailed"}
    assert all("arrived corrupted" in turn["words"] for turn in found)
    assert nothing_left(found)


@pytest.mark.parametrize("work", [1, 400])
def test_a_lost_device_is_told_by_every_run_from_then_on(turns, work):
    found = turns(f"lost@{work}", 2)
    assert errors(found) == {"DeviceLost"}
    assert all(turn["live"] is None for turn in found)
