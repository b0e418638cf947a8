"""Which platform real vLLM takes, with which adapters installed, and what is said about it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.vllm

ASK = """
import vllm.platforms as platforms
from vllm.plugins import load_general_plugins

active = platforms.current_platform
load_general_plugins()
print("RESULT", type(active).__name__, active._enum.name, active.device_type)
"""


@pytest.fixture
def resolve(site, vllm_environ):
    """resolve(**variables) -> the process that asked vLLM for its platform."""
    given = {k: v for k, v in vllm_environ.items() if k.startswith(("HF_", "VLLM_"))}

    def run(code=ASK, **variables):
        return site.run("-c", code, variables=given | variables)

    return run


def answer(done):
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return line.split()[1:]


def said(done):
    """What we said, without the mark at the beginning of each line."""
    mark = "vllm-adapter: "
    return [line.removeprefix(mark) for line in done.stderr.splitlines() if line.startswith(mark)]


def test_the_cpu_adapter_gets_its_platform_and_vllm_s_enum_stays(resolve):
    done = resolve()
    assert answer(done) == ["NativeCpu", "CPU", "cpu"]
    assert said(done) == [
        "adapter cpu serves cpu: cpu is the only adapter that can serve vLLM here"
    ]


def test_with_a_broken_and_a_second_adapter_vllm_starts_and_the_reason_is_printed(site, resolve):
    for kind in ("raises", "segfaults", "mutants"):
        site.add(kind)
    manifest = site.path / "vllm_adapter_mutants/adapter.json"
    raw = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(raw | {"tested_on": ["any"]}))
    tied = resolve()
    assert answer(tied) == ["CpuPlatform", "CPU", "cpu"]
    first, *each = said(tied)
    assert first == (
        "warning: steps aside, vLLM stays as it is: cpu and mutants are equally good, and no "
        "setting names one; decide with `export VA_ADAPTERS=cpu` or `export VA_ADAPTERS=mutants`"
    )
    assert any("table of devices is empty" in line for line in each)
    assert any("segfaults (broken)" in line for line in each)
    decided = resolve(VA_ADAPTERS="cpu")
    assert answer(decided) == ["NativeCpu", "CPU", "cpu"]
    manifest.write_text(json.dumps(raw))  # as a new adapter is: it stands in for its chip
    assert answer(resolve()) == ["NativeCpu", "CPU", "cpu"]


def test_another_device_than_the_required_one_is_refused(resolve):
    done = resolve(VA_REQUIRE_DEVICE="cuda")
    assert done.returncode == 1
    assert "DeviceRefused: VA_REQUIRE_DEVICE is cuda, and vLLM runs on cpu" in done.stderr
    assert answer(resolve(VA_REQUIRE_DEVICE="cpu")) == ["NativeCpu", "CPU", "cpu"]


def test_under_vllm_target_device_no_operator_is_replaced(resolve):
    done = resolve(VLLM_TARGET_DEVICE="cpu")
    assert answer(done) == ["CpuPlatform", "CPU", "cpu"]
    assert "no operator is replaced: vLLM runs on CpuPlatform, not on our platform" in said(done)


@pytest.mark.parametrize(
    ("plugins", "platform"), [("vllm_adapter", "NativeCpu"), ("other", "CpuPlatform")]
)
def test_vllm_plugins_filters_both_entries_alike(resolve, plugins, platform):
    done = resolve(VLLM_PLUGINS=plugins)
    assert answer(done)[0] == platform
    assert bool(said(done)) == (platform == "NativeCpu")


CHILD = f"""
import subprocess, sys
import vllm.platforms as platforms
platforms.current_platform
code = '''
import vllm_adapter.discovery.registry
vllm_adapter.discovery.registry.probe = None  # a child never probes
{ASK}
'''
sys.exit(subprocess.run([sys.executable, "-c", code]).returncode)
"""


def test_a_child_reads_the_choice_and_is_quiet(resolve):
    done = resolve(CHILD)
    assert answer(done) == ["NativeCpu", "CPU", "cpu"]
    assert len(said(done)) == 1


def test_the_doctor_finds_nothing_wrong_with_this_release(vllm_environ):
    words = [sys.executable, "-m", "vllm_adapter.cli", "doctor", "--vllm", "--json"]
    done = subprocess.run(words, env=vllm_environ, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    assert (report["findings"], done.returncode) == ([], 0)
    assert report["signatures"]["exact"]
    assert report["replay"]["resolution"]["returned"].endswith(".NativeCpu")
