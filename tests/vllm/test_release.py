"""One release of vLLM with this tree: what `make vllm-matrix` runs in an environment of each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tiny_llama
from plain_vllm import OPERATORS, PLAIN, calls_of, drawn, equal, saved

from vllm_adapter.broker.vllm_install import find_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TOKENS = 8
PROMPTS = [drawn(5, 40, 33)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tiny_llama.tiny("qwen3"), tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def plain(run_engine, model):
    """What the release answers without us."""
    return run_engine(model, PROMPTS, TOKENS, PLAIN)


def test_native_with_our_operators_or_not_at_all(run_engine, model, plain, tmp_path, figures):
    """Where plain vLLM runs, its tokens are ours; where ours steps aside, they are plain's."""
    if plain.code != 0:
        figures(f"plain vLLM does not run here: {plain.log.splitlines()[-1]}")
        assert find_vllm().build != "cpu", plain.log[-3000:]
        return
    got = run_engine(model, PROMPTS, TOKENS, {"VA_COUNTERS": str(tmp_path)})
    assert got.code == 0, got.log[-3000:]
    figures(equal(plain.result, got.result))
    assert got.result["platform"] == "NativeCpu"
    assert set(calls_of(tmp_path)[1]) == set(OPERATORS)
    assert got.result["backends"] == ["CUSTOM"]


def test_without_a_setting_it_starts_wherever_plain_vllm_does(run_engine, model, plain, figures):
    if plain.code != 0:
        return
    got = run_engine(model, PROMPTS, TOKENS, {"VA_CAPABILITY": ""})
    assert got.code == 0, got.log[-3000:]
    figures(equal(plain.result, got.result))


def test_the_doctor_finds_nothing_that_differs(vllm_environ, figures):
    words = [sys.executable, "-m", "vllm_adapter.cli", "doctor", "--vllm", "--json"]
    done = subprocess.run(words, env=vllm_environ, capture_output=True, text=True, timeout=600)
    report = json.loads(done.stdout)
    figures(f"{report['vllm']['version']}: {[f['code'] for f in report['findings']]}")
    assert report["signatures"]["exact"] and report["signatures"]["drifted"] == 0
    assert done.returncode == 0, report["findings"]
