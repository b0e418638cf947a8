"""The native shape without an engine: platform classes of all devices, modules in a graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm
HERE = Path(__file__).parent
BASES = {
    "NativeCpu": ("CPU", "CpuPlatform"),
    "NativeCuda": ("CUDA", "NonNvmlCudaPlatform"),
    "NativeRocm": ("ROCM", "RocmPlatform"),
    "NativeXpu": ("XPU", "XPUPlatform"),
}


def result(script, argument, environ):
    done = subprocess.run(
        [sys.executable, str(HERE / script), argument],
        env=environ,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.parametrize("name", BASES)
def test_the_class_is_built_and_overrides_with_vllms_own_signatures(name, vllm_environ, figures):
    built = result("build_platform.py", name, vllm_environ)
    assert (built["enum"], built["theirs"]) == BASES[name]
    assert len(built["parameters"]) == 5
    for method, (ours, theirs) in built["parameters"].items():
        assert ours == theirs, method
    if name != "NativeCpu":
        figures(f"{name} over {built['theirs']}: built, signatures equal; not run on hardware")


@pytest.mark.parametrize("wrap", ["wrapped", "unwrapped"])
def test_a_block_of_replaced_modules_is_one_graph(wrap, vllm_environ, tmp_path):
    traced = result("traced.py", wrap, {**vllm_environ, "VA_COUNTERS": str(tmp_path)})
    assert traced["graphs"] == 1
    replaced = ("SiluAndMul", "GeluAndMul", "RotaryEmbedding", "ReplicatedLinear")
    assert {f"Portable{name}" for name in replaced} < set(traced["classes"])
    # Wrapped, the norms are vLLM's nodes; plain torch of ours leaves none, as it is traced.
    norms = {"vllm_ir.fused_add_rms_norm", "vllm_ir.rms_norm"} if wrap == "wrapped" else set()
    assert {node.rpartition(".")[0] for node in traced["nodes"]} == norms
