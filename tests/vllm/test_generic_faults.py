"""Faults of the simulated device under vLLM: each by its name, without a wrong token, and over."""

from __future__ import annotations

import pytest
import tiny_llama
from plain_vllm import NEW, drawn, saved

pytest.importorskip("vllm_adapter_sim", reason="adapters/sim is built with a C compiler")
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SMALL = {"block_size": None, "gpu_memory_utilization": 0.05}
PROMPTS = drawn(1, 31, 32, 33, 5)
WHILE_IT_ANSWERS = {
    # Chances are counted from the first prompt on; a step of decode has some sixty.
    "a kernel fails in prefill": ("launch@1", "LaunchFailed"),
    "a kernel fails in decode": ("launch@600", "LaunchFailed"),
    "the device is lost in decode": ("lost@600", "DeviceLost"),
    "memory is short in prefill": ("oom@1", "OutOfMemory"),
    "memory is short in decode": ("oom@600", "OutOfMemory"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tiny_llama.tiny("qwen3"), tmp_path_factory.mktemp("qwen3"))


@pytest.mark.parametrize(("fault", "error"), WHILE_IT_ANSWERS.values(), ids=WHILE_IT_ANSWERS)
def test_a_fault_while_it_answers_ends_the_run_by_name(run_engine, model, tmp_path, fault, error):
    environ = {"VA_ADAPTERS": "sim", "SIM_FAULT": fault, "SIM_FAULT_FROM": str(tmp_path / "up")}
    got = run_engine(model, [PROMPTS], NEW, environ, **SMALL)
    assert (tmp_path / "up").exists(), got.log
    assert got.code != 0 and got.result is None
    assert error in got.log, got.log[-3000:]


def test_memory_that_is_short_at_load_ends_the_start_by_name(run_engine, model):
    environ = {"VA_ADAPTERS": "sim", "SIM_FAULT": "oom@20+"}
    got = run_engine(model, [PROMPTS], NEW, environ, **SMALL)
    assert got.code != 0 and got.result is None
    assert "OutOfMemory" in got.log
