"""The native shape without an engine: platform classes of all devices, modules in a graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plain_vllm import changed

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
        timeout=600,
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
def test_a_block_of_replaced_modules_is_one_graph(wrap, vllm_environ, all_operators, tmp_path):
    given = {"VA_COUNTERS": str(tmp_path), "VA_CAPABILITY": str(all_operators)}
    traced = result("traced.py", wrap, vllm_environ | given)
    assert traced["graphs"] == 1
    replaced = ("SiluAndMul", "GeluAndMul", "RotaryEmbedding", "ReplicatedLinear")
    assert {f"Portable{name}" for name in replaced} < set(traced["classes"])
    # Wrapped, the norms are vLLM's nodes; plain torch of ours leaves none, as it is traced.
    norms = {"vllm_ir.fused_add_rms_norm", "vllm_ir.rms_norm"} if wrap == "wrapped" else set()
    assert {node.rpartition(".")[0] for node in traced["nodes"]} == norms


def test_the_key_of_compiled_graphs_changes_with_the_descriptor(vllm_environ, tmp_path):
    files = [changed(tmp_path / name, change) for name, change in DESCRIPTORS.items()]
    names = json.dumps(["", *map(str, files), ""])
    first, same, fewer, narrower, again = result("compile_key.py", names, vllm_environ)
    assert first == again
    assert len(set(first)) == len(first)
    rows = [first, same, fewer, narrower]
    for column in zip(*rows, strict=True):
        assert len(set(column)) == len(rows)


DESCRIPTORS = {
    "with nothing measured": dict,
    "without an operator": lambda ops: {op: e for op, e in ops.items() if op != "linear"},
    "with limits": lambda ops: {**ops, "rms_norm": {**ops["rms_norm"], "limits": {"hidden": [8]}}},
}
