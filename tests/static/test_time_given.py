"""The time that a process was given: its waits for a processor are not its fault."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.discovery import registry
from vllm_adapter.discovery.registry import Status
from vllm_adapter.hostfacts.time_given import FAR, LOOK_S, TimeGiven, wait_for
from vllm_adapter.settings import AdapterFilter, Settings

pytestmark = pytest.mark.static

PLUGIN = """
import time
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def probe(self):
        {body}
"""
COMPUTES = "end = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
SLEEPS = "time.sleep(600)"
LIMIT_S = 1.5
"""Between what `COMPUTES` and its imports use, and what they take beside those who spin."""
SPINNERS = 4


@pytest.fixture
def machine(tmp_path):
    """A machine of one processor with process 70, its child 71, and a stranger, 90."""

    class Machine:
        now = 100.0
        root = str(tmp_path)

        def clock(self):
            return self.now

        def thread(self, pid, thread, *, ran=0.0, waited=0.0, parent=1):
            folder = tmp_path / str(pid) / "task" / str(thread)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "schedstat").write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} 1")
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent} 1 1")

        def given(self):
            return TimeGiven(70, clock=self.clock, root=self.root)

    made = Machine()
    made.thread(70, 70, ran=5, waited=5)
    made.thread(71, 71, parent=70)
    made.thread(90, 90)
    return made


def test_a_process_that_sleeps_is_given_the_time_of_the_clock(machine):
    found = machine.given()
    machine.now += 8
    machine.thread(90, 90, ran=8, waited=8)
    assert found.look() == 8
    assert not found.mostly_waited


@pytest.mark.parametrize(("pid", "thread", "parent"), [(70, 70, 1), (70, 74, 1), (71, 71, 70)])
def test_waits_of_any_thread_of_its_family_are_left_out(machine, pid, thread, parent):
    found = machine.given()
    machine.now += 8
    before = 5 if thread == 70 else 0
    machine.thread(pid, thread, ran=before + 1, waited=before + 7, parent=parent)
    assert found.look() == pytest.approx(1)
    assert found.mostly_waited
    assert found.no_answer(1) == "gave no answer within 1 s (8 s by the clock of a busy machine)"


def test_threads_that_take_the_processor_from_each_other_are_not_kept_waiting(machine):
    found = machine.given()
    machine.now += 8
    for thread in range(72, 80):
        machine.thread(70, thread, ran=8, waited=7.9)  # more than any machine has of processors
    assert found.look() == 8


@given(steps=st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 9), st.floats(0, 9)), max_size=9))
def test_it_is_between_the_far_bound_and_the_clock(tmp_path_factory, steps):
    root, ran, waited, now = tmp_path_factory.mktemp("proc"), 0.0, 0.0, 0.0
    folder = root / "70" / "task" / "70"
    folder.mkdir(parents=True)
    found = TimeGiven(70, clock=lambda: now, root=str(root))
    for past, more_ran, more_waited in steps:
        now, ran, waited = now + past, ran + more_ran, waited + more_waited
        (folder / "schedstat").write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} 1")
        found.look()
    assert now / FAR - 1e-6 <= found.look() <= now + 1e-6


def test_without_what_the_system_counts_it_is_the_clock(tmp_path):
    now = 3.0
    found = TimeGiven(70, clock=lambda: now, root=str(tmp_path / "none"))
    now += 2
    assert found.look() == 2


def test_it_looks_no_more_often_than_it_says(machine):
    found = machine.given()
    machine.now += LOOK_S / 2
    assert found.seconds() == 0
    machine.now += LOOK_S
    assert found.seconds() == 1.5 * LOOK_S


def test_a_process_that_ends_is_waited_for_and_one_that_sleeps_is_given_up():
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    assert wait_for(process, 30.0, TimeGiven(process.pid)) == 3
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(subprocess.TimeoutExpired):
        wait_for(process, 0.1, TimeGiven(process.pid))
    process.kill()
    process.wait()


@pytest.fixture
def crowded():
    """One processor for all that is started here, and others that want it, too."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin, start_new_session=True) for _ in range(SPINNERS)]
    yield
    for process in others:
        process.kill()
        process.wait()
    os.sched_setaffinity(0, before)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="no waits are counted")
def test_a_probe_that_waits_for_a_processor_is_sound_and_one_that_sleeps_hangs(
    site, monkeypatch, crowded
):
    monkeypatch.syspath_prepend(site.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.path / ".cache"))
    body = COMPUTES.replace("\n", "\n        ")
    site.make("computes", plugin=PLUGIN.format(body=body))
    site.make("sleeps", plugin=PLUGIN.format(body=SLEEPS))
    records = {}
    for name in ("computes", "sleeps"):
        chosen = Settings(adapters=AdapterFilter(allowed=frozenset([name])))
        found = [r for r in registry.discover(chosen) if r.name == name]
        (records[name],) = registry.probe(found, limit_s=LIMIT_S)
    assert records["computes"].status is Status.OK, records["computes"].reason
    assert records["sleeps"].status is Status.BROKEN
    assert records["sleeps"].reason.startswith("its probe gave no answer within 1.5 s")
    assert any("plugin.py" in line for line in records["sleeps"].evidence)
