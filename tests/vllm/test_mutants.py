"""Adapters that only vLLM shows to be wrong: each is failed by the rule of L4 that is named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fake_dist import environment
from zoo import descriptor

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SERVED = "vllm_adapter_mutants.served:"
RULES = ("L4.counters", "L4.tokens")
SUITE = (
    *("-m", "pytest", "--pyargs", "vllm_adapter_conformance", "--noconftest", "-q"),
    *("-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "vllm_adapter_conformance.plugin"),
)


@pytest.fixture
def outcomes(site, tmp_path):
    """outcomes(operators) -> rule -> outcome and what was seen, of one model under vLLM."""

    def run(operators):
        package = site.add("mutants")
        raw = json.dumps(descriptor(operators))
        (package / "capabilities/any.json").write_text(raw, encoding="utf-8")
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        journal = tmp_path / "journal"
        words = ["--adapter", "mutants", "--level", "L4", "--journal", str(journal)]
        words += [f"--case={rule}[qwen3]" for rule in RULES]
        words += ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path)]
        subprocess.run(
            [sys.executable, *SUITE, *words],
            env=environment(site.path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
            cwd=tmp_path,
            timeout=540,
        )
        events = map(json.loads, journal.read_text("utf-8").splitlines())
        ended = [event for event in events if event["event"] == "end"]
        return {event["item"].partition("[")[0]: event for event in ended}

    return run


def test_attention_that_drops_the_last_key_under_vllm(outcomes):
    run = f"{SERVED}last_key_dropped_under_vllm"
    found = outcomes({"paged_attention": {"run": run}})
    assert found["L4.counters"]["outcome"] == "pass", found
    assert found["L4.tokens"]["outcome"] == "fail"
    assert "apart at the first difference" in found["L4.tokens"]["seen"]


def test_an_adapter_whose_operators_are_never_called(outcomes):
    silent = {op: {"supports": f"{SERVED}not_under_vllm"} for op in descriptor({})["operators"]}
    found = outcomes(silent)
    assert found["L4.counters"]["outcome"] == "fail"
    assert "calls of mutants's rms_norm" in found["L4.counters"]["expected"]
    assert found["L4.tokens"]["outcome"] == "blocked"
