"""The adapter and its judge share no process: what a kernel does to its own helps it nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_dist import PLUGINS, environment

from vllm_adapter.contract.capability import load_capability
from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.adapter import one_line
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_conformance.base.rule import Case
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.device_side.loaded import what_ran
from vllm_adapter_conformance.judge.journal import JournalReader, of
from vllm_adapter_conformance.plan.suite import SuiteItem
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.execution import open_bench, run_item

pytestmark = pytest.mark.device

FOLDER = PLUGINS / "hostile"
PACKAGE = FOLDER / "vllm_adapter_hostile"
SUITE_PLUGINS = Path(__file__).parents[1] / "suite_plugins"
SUITE = "vllm_adapter_conformance"
JUDGES = (
    *("pytest", "_pytest", "xdist"),
    *(f"{SUITE}.{room}" for room in ("judge", "run", "certificate", "ops.tolerance")),
    *(f"{SUITE}.{room}" for room in ("ops.trial", "ops.runs", "ops.draw", "models.tiny")),
)
SECONDS = 300.0
SEEN = {
    # what the kernel does: a word of the failure
    "tolerance": "budget",
    "spares": "budget",
    "equal": "budget",
    "wire": "",
    "peeks": "budget",
    "leaves": "SystemExit",
    "unusual": "Unusual: not today",
    "interrupts": "KeyboardInterrupt",
    "exits": "left with exit code 0",
    "crashes": "killed by SIGSEGV",
    "kills_all": "killed by SIGKILL",
    "writes": "",
    "answers": "",
    "empties": "",
    "closes": "the process",
    "forks": "left with exit code 0",
    "forks_stays": "left with exit code 0",
}


def target():
    manifest = read_manifest(PACKAGE / "adapter.json")
    file = PACKAGE / "capabilities/any.json"
    device = DeviceRecord(0, "cpu", "Test", "any", file)
    record = AdapterRecord(
        "hostile",
        "vllm-adapter-hostile",
        "1.0",
        "vllm_adapter_hostile",
        Status.OK,
        manifest=manifest,
        path=PACKAGE,
        devices=(device,),
    )
    return Target(record, HostFacts(), load_capability(file), device)


def item(op="rms_norm"):
    rule = registered()[f"L2.{op}.correct"]
    first = next(case for case in rule.cases(target()) if isinstance(case, Case))
    return SuiteItem(rule, first)


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Makes the bench of a judge, for what HOSTILE says."""
    monkeypatch.syspath_prepend(str(FOLDER))
    made = []

    def make(fault, seconds=SECONDS):
        monkeypatch.setenv("HOSTILE", fault)
        made.append(open_bench(target(), tmp_path, apart=True))
        made[0].allow(seconds)
        return made[0]

    yield make
    for one in made:
        one.end()


def test_a_right_kernel_passes(bench):
    result = run_item(bench("none"), item())
    assert result.outcome == "pass", result
    assert not [name for name in sys.modules if name.startswith("vllm_adapter_hostile")]


@pytest.mark.parametrize("fault", SEEN)
def test_a_wrong_kernel_fails_whatever_it_does(fault, bench):
    judge = bench(fault)
    result = run_item(judge, item())
    assert result.outcome == "fail"
    assert SEEN[fault] in f"{result.expected} {result.seen}", result


@pytest.mark.parametrize("fault", ["exits", "answers", "equal"])
def test_the_judge_lives_on_as_it_was(fault, bench):
    judge = bench(fault)
    assert run_item(judge, item()).outcome == "fail"
    judge.end()
    judge.allow(SECONDS)
    assert run_item(judge, item("silu_and_mul")).outcome == "pass"


@pytest.mark.parametrize("fault", ["hangs", "hangs_deaf"])
def test_a_hang_ends_the_devices_process_alone(fault, bench):
    judge = bench(fault)
    judge.open()
    judge.allow(3.0)
    result = run_item(judge, item())
    assert result.outcome == "fail" and "none: it hangs" in result.seen
    assert "in hangs" in result.detail or fault == "hangs_deaf"
    judge.allow(SECONDS)
    assert run_item(judge, item("silu_and_mul")).outcome == "pass"


def test_a_wrong_number_costs_no_process(bench):
    judge = bench("plain")
    for _ in range(3):
        judge.allow(SECONDS)
        result = run_item(judge, item())
        assert result.outcome == "fail" and "budget" in result.expected
        assert judge.is_sound()
    assert judge.processes == 1


def test_modules_are_sent_to_the_process_that_a_case_begins_with(bench):
    judge = bench("none")
    for _ in range(2):
        judge.begin(SECONDS)
        assert judge.observe(what_ran)["files"]
        judge.observe(one_line)  # not sent: the next case begins with a new process
    assert judge.processes == 2


@pytest.mark.slow
def test_no_process_of_a_whole_run_is_both(site, tmp_path):
    """L0 to L3 of an adapter whose every module notes where it is."""
    site.add("hostile", requires=("vllm-adapter-core>=0.1,<0.2",))
    notes, journal = tmp_path / "notes", tmp_path / "journal"
    notes.mkdir()
    found = environment(site.path, HOSTILE="none", NOTES=str(notes))
    found["PYTHONPATH"] = os.pathsep.join([str(SUITE_PLUGINS), found["PYTHONPATH"]])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--pyargs", "vllm_adapter_conformance", "-q"),
            *("--adapter", "hostile", "--level", "L3", "--budget", "1", "--journal", str(journal)),
            *("-p", "notes_of_the_judge", "-p", "no:cacheprovider"),
        ],
        env=found,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [json.loads(file.read_text("utf-8")) for file in notes.iterdir()]
    judges = {note["pid"]: note for note in seen if note["what"] == "judge"}
    theirs = [note for note in seen if note["what"] != "judge"]
    assert {note["what"] for note in theirs} == {"import", "plugin", "open", "kernels", "called"}
    began = {event["pid"] for event in of(JournalReader(journal).new(), "begin")}
    assert len(judges) == 2 and began < judges.keys(), "pytest's own process, and its worker"
    assert not judges.keys() & {note["pid"] for note in theirs}
    for note in judges.values():
        assert not [name for name in note["modules"] if name.startswith("vllm_adapter_hostile")]
    for note in theirs:
        assert not [name for name in note["modules"] if name.startswith(JUDGES)], note["what"]
        if note["what"] == "called":
            assert not [name for name in note["environment"] if name.startswith("PYTEST_")]
            assert not [name for name in note["modules"] if name.startswith(SUITE)]
            assert not [word for word in note["argv"][1:] if "pytest" in word or SUITE in word]
