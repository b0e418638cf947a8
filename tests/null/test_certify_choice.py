"""`certify` for somebody who mends a kernel: chosen items, the first failure, old scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.null

REQUIRES = ("vllm-adapter-core>=0.1,<0.2",)


@pytest.fixture
def command(site, tmp_path, monkeypatch):
    """Runs `vllm-adapter` in an empty folder; FAULTY_RUNTIME names the adapter's fault."""
    site.add("faulty_runtime", requires=REQUIRES)
    monkeypatch.chdir(tmp_path)

    def run(*words, **variables):
        done = site.run("-m", "vllm_adapter.cli", *words, variables=variables)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


FREED = ("certify", "faulty_runtime", "--case", "L1.memory.freed*")


@pytest.mark.slow
def test_chosen_items_run_alone_and_write_no_certificate(command):
    done = command(*FREED, "--seed", "3", FAULTY_RUNTIME="none")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no certificate is written: --case chose the items; seed 3 repeats it" in done.stdout
    assert not Path("certificates").exists()

    done = command(*FREED, FAULTY_RUNTIME="frees_twice")
    assert done.returncode == 1
    assert "FAILED L1.memory.freed[free]" in done.stdout
    (script,) = Path("certificates/repro").iterdir()
    done = command(*FREED, "--json", FAULTY_RUNTIME="none")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["ok"] and answer["certificate"] is None and answer["file"] is None
    assert {item["outcome"] for item in answer["items"]} == {"pass"} and not answer["failures"]
    assert not script.exists()


@pytest.mark.slow
def test_fail_fast_ends_at_the_first_failure(command):
    whole = command("certify", "faulty_runtime", "--level", "L1", "--list", "--json")
    items = json.loads(whole.stdout)["items"]
    done = command(
        *("certify", "faulty_runtime", "--level", "L1", "--fail-fast", "--json"),
        FAULTY_RUNTIME="frees_twice",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    failed = [item["item"] for item in answer["items"] if item["outcome"] == "fail"]
    assert failed == ["L1.memory.freed[free]"]
    assert len(answer["items"]) < len(items) and answer["certificate"] is None
    (group,) = answer["failures"]
    assert group["items"] == failed and Path(group["repro"]).is_file()
    assert not Path("certificates/faulty_runtime-L1.json").exists()


def test_items_are_listed_and_an_unknown_one_is_a_sentence(command):
    done = command("certify", "faulty_runtime", "--list", "--case", "L1.copy.round_trip")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "L1.copy.round_trip[about a page]" in lines
    assert all(line.startswith("L1.copy.round_trip[") for line in lines)

    done = command("certify", "faulty_runtime", "--case", "L1.copy.raund_trip")
    assert done.returncode == 2 and not done.stdout
    assert "'L1.copy.raund_trip'" in done.stderr and "L1.copy.round_trip" in done.stderr

    done = command("certify", "faulty_runtime", "--case", "L1.copy", "--output", "x.json")
    assert done.returncode == 2 and "leave out --output" in done.stderr
