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
CASES = ("L4.counters[qwen3]", "L4.tokens[qwen3]")
SERVER = "L4.embeddings_server"
SUITE = (
    *("-m", "pytest", "--pyargs", "vllm_adapter_conformance", "--noconftest", "-q"),
    *("-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "vllm_adapter_conformance.run.plugin"),
)


@pytest.fixture
def outcomes(site, tmp_path):
    """outcomes(operators, server) -> how each case ended, of CASES and one of a server's."""

    def run(operators, server):
        cases = (*CASES, f"{SERVER}[{server}]")
        package = site.add("mutants")
        raw = json.dumps(descriptor(operators))
        (package / "capabilities/any.json").write_text(raw, encoding="utf-8")
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        journal = tmp_path / "journal"
        words = ["--adapter", "mutants", "--level", "L4", "--journal", str(journal)]
        words += [f"--case={case}" for case in cases]
        words += ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path)]
        subprocess.run(
            [sys.executable, *SUITE, *words],
            env=environment(site.path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
            cwd=tmp_path,
            timeout=540,
        )
        events = map(json.loads, journal.read_text("utf-8").splitlines())
        ended = [event for event in events if event["event"] == "end"]
        return [{e["item"]: e for e in ended}[case] for case in cases]

    return run


def test_attention_that_drops_the_last_key_under_vllm(outcomes):
    run = f"{SERVED}last_key_dropped_under_vllm"
    counters, tokens, server = outcomes({"paged_attention": {"run": run}}, "concurrent")
    assert counters["outcome"] == "pass", counters
    assert tokens["outcome"] == "fail"
    assert "apart at the first difference" in tokens["seen"]
    assert server["outcome"] == "fail"
    assert "vectors within" in server["expected"]


def test_an_adapter_whose_operators_are_never_called(outcomes):
    silent = {op: {"supports": f"{SERVED}not_under_vllm"} for op in descriptor({})["operators"]}
    counters, tokens, server = outcomes(silent, "counters")
    assert counters["outcome"] == "fail"
    assert "calls of mutants's rms_norm" in counters["expected"]
    assert tokens["outcome"] == "blocked"
    assert server["outcome"] == "fail"
    assert "calls of rms_norm" in server["expected"]
