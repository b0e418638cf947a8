"""`serve` starts the server with the plan's flags; the operator's own win and are said to."""

from __future__ import annotations

import json

import pytest
from fake_vllm import add_plugin, install_vllm
from model_configs import LLAMA3_70B, SMOLLM2_135M

pytestmark = pytest.mark.static

CLI = ("-m", "vllm_adapter.cli")
CPU = {"VA_ADAPTERS": "cpu"}
"""The CPU is meant, whatever else this machine has."""


@pytest.fixture
def served(site, tmp_path):
    """Runs `serve --dry-run` with a fake vLLM of a few files, on a model's config alone."""
    install_vllm(site.path)

    def run(config: dict, *flags: str, ours: tuple[str, ...] = (), **variables: str):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        words = (*CLI, "serve", "--dry-run", *ours, str(folder), *flags)
        return site.run(*words, variables=CPU | variables)

    return run


def test_the_plan_is_applied_and_an_own_flag_wins(served):
    flags = ("--max-num-seqs", "5", "--port", "8000")
    done = served(SMOLLM2_135M, *flags, ours=("--json",))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    line = found["vllm_serve"]
    assert found["plan"]["applied"] and line.count("--max-num-seqs") == 1
    assert line.endswith("--max-num-seqs 5 --port 8000")
    for flag in ("--max-model-len 8192", "--dtype bfloat16", "--enforce-eager", "--block-size 32"):
        assert flag in line
    assert "your own value of sequences is kept: 5" in found["notes"]


def test_explain_prints_the_reasons(served):
    done = served(SMOLLM2_135M, ours=("--explain",))
    assert done.returncode == 0, done.stderr
    assert "2 x 3 KV heads x 64 x 2 bytes x 30 layers" in done.stdout
    assert "reads /memory/capacity_bytes" in done.stdout


def test_what_does_not_fit_is_not_started(served):
    wide = LLAMA3_70B | {"num_hidden_layers": 9000}  # more than any CPU has memory for
    done = served(wide)
    assert (done.returncode, done.stdout) == (2, "")
    assert "too little for the weights alone" in done.stderr and "--plan off" in done.stderr
    done = served(wide, ours=("--plan", "off"))
    assert done.returncode == 0 and "not planned: --plan off" in done.stdout


def test_a_cache_that_is_larger_than_the_memory_is_named_as_what_does_not_fit(served):
    done = served(SMOLLM2_135M, VLLM_CPU_KVCACHE_SPACE="9000000")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a KV cache of 9000000.00 GiB a rank was asked for, and beside the" in done.stderr


def test_another_project_s_platform_gets_no_plan_for_our_device(served, site):
    add_plugin(site, "npu", "def answer():\n    return 'vllm.platforms:CpuPlatform'\n")
    done = served(SMOLLM2_135M, ours=("--json",), VA_ADAPTERS="-sim")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "the platform plug-in npu of npu answers" in found["selection"]["reason"]
    assert not found["plan"]["applied"] and found["plan"]["flags"] == []
    assert "the devices chosen here are cpu's, and no adapter of ours serves" in done.stdout


def test_a_name_and_a_config_of_ones_own_are_left_alone_and_it_is_said(served, site):
    done = site.run(*CLI, "serve", "--dry-run", "acme/model", variables=CPU)
    assert "not planned: acme/model is no folder here" in done.stdout
    done = served(SMOLLM2_135M, "--config", "mine.yaml")
    assert "not planned: --config holds flags of yours" in done.stdout
    assert "--max-model-len" not in done.stdout


def test_the_operators_environment_is_kept(served):
    done = served(SMOLLM2_135M, ours=("--json",), VLLM_CPU_KVCACHE_SPACE="1")
    found = json.loads(done.stdout)
    assert "--kv-cache-memory-bytes" not in found["vllm_serve"]
    lines = {one["key"]: one for one in found["plan"]["lines"]}
    assert lines["kv_bytes"]["value"] == 1 << 30 and lines["kv_bytes"]["owner"] == "operator"
    assert lines["kv_blocks"]["value"] == (1 << 30) // (32 * 23_040)
