"""Counts of calls: a file a process, right at every moment, nothing where not asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from vllm_adapter.engine.integrations.vllm.counters import counted, read_counts
from vllm_adapter.errors import InputError

pytestmark = pytest.mark.null


def double(x):
    return 2 * x


def test_without_the_variable_nothing_is_wrapped(monkeypatch):
    monkeypatch.delenv("VA_COUNTERS", raising=False)
    assert counted("linear", "acme", double) is double


def test_counts_are_by_operator_and_provider(monkeypatch, tmp_path):
    monkeypatch.setenv("VA_COUNTERS", str(tmp_path / "new"))
    linear = counted("linear", "acme", double)
    again, other = counted("linear", "acme", double), counted("linear", "cpu", double)
    assert [run(3) for run in (linear, linear, again, other)] == [6] * 4
    (found,) = read_counts(tmp_path / "new")
    assert (found.process, found.pid) == ("MainProcess", os.getpid())
    assert found.calls == {("linear", "acme"): 3, ("linear", "cpu"): 1}


def test_a_traced_call_leaves_no_trace_of_counting(monkeypatch, tmp_path):
    monkeypatch.setenv("VA_COUNTERS", str(tmp_path))
    run = counted("silu_and_mul", "acme", double)
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert read_counts(tmp_path) == []


KILLED = """
import os, signal
from vllm_adapter.engine.integrations.vllm.counters import counted
run = counted("linear", "acme", abs)
for _ in range(5):
    run(-1)
if not os.fork():
    run(-1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_and_its_child_have_counted(tmp_path):
    environ = {**os.environ, "VA_COUNTERS": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environ, timeout=60)
    assert done.returncode == -signal.SIGKILL
    counts = [one.calls[("linear", "acme")] for one in wait_for(tmp_path, 2)]
    assert sorted(counts) == [1, 5]


def wait_for(folder, files):
    """The child is not waited for by anybody: its file comes when it comes."""
    for _ in range(200):
        found = read_counts(folder)
        if len(found) == files and all(one.calls for one in found):
            return found
        subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError(f"{files} files were expected in {folder}")


def test_a_file_of_others_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "x-1.counts").write_text("hello\n")
    with pytest.raises(InputError, match="holds no counts"):
        read_counts(tmp_path)
