"""Reports of boxes with nothing wrong: the doctor finds nothing, however they are damaged."""

from __future__ import annotations

import json
import random
import re
import textwrap
from pathlib import Path

import pytest
from examples import examples
from findings_samples import texts
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.contract.finding import Severity
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.report.read import parse_report
from vllm_adapter_doctor.vendor_data.driver_tables import toolkit_table, wheels

pytestmark = pytest.mark.static

DATA = Path(__file__).parent.parent / "data"
ANSWERS = json.loads((DATA / "reports/expected.json").read_text(encoding="utf-8"))
HEALTHY = {file.stem: file.read_text("utf-8") for file in sorted((DATA / "healthy").glob("*.txt"))}
QUIET = HEALTHY | {
    name: (DATA / "reports" / name).read_bytes().decode("utf-8", "replace")
    for name, answer in ANSWERS.items()
    if not answer["findings"]
}


def wrong(text: str) -> set[str]:
    """Codes of findings; notes are none."""
    found = diagnose(ExaminedHost(parse_report(text)))
    return {one.code for one in found if one.severity is not Severity.NOTE}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_report_has_no_findings(name):
    assert wrong(HEALTHY[name]) == set()


@settings(max_examples=examples(150))
@given(st.sampled_from(sorted(QUIET)), st.floats(0, 1))
def test_a_healthy_report_cut_anywhere_has_no_findings(name, share):
    text = QUIET[name]
    lines = text.splitlines(keepends=True)
    assert wrong("".join(lines[: int(len(lines) * share)])) - CUT == set()


CUT = {"VA1002"}
"""A table that is cut is said to be cut."""


@settings(max_examples=examples(60))
@given(st.sampled_from(sorted(QUIET)), st.sampled_from(sorted(QUIET)))
def test_an_error_free_log_beside_it_changes_nothing(name, other):
    if "cuda" in name or "nvidia" in name:
        assert wrong(HEALTHY["vllm-start-cuda-8xh100"] + "\n" + QUIET[name]) == wrong(QUIET[name])
    assert wrong(QUIET[other]) == set()


@pytest.mark.parametrize(
    "branch", [int(one) for one in toolkit_table("cuda", "branches") if int(one) >= 525]
)
@pytest.mark.parametrize("local", ["cu121", "cu124", "cu126", "cu128", "cu130", "cu132"])
def test_every_driver_that_starts_a_runtime_is_fine(branch, local):
    major, minor = local[2:4], local[4:]
    if major == "13" and branch < 580:
        return
    report = (
        f"PyTorch version: 2.9.0+{local}\nCUDA used to build PyTorch: {major}.{minor}\n"
        "Is CUDA available: True\nGPU models and configuration: \n"
        f"GPU 0: NVIDIA A100 80GB PCIe\n\nNvidia driver version: {branch}.99.09\n"
    )
    assert wrong(report) == set()


DEVICES = (
    "NVIDIA A10",
    "NVIDIA L4",
    "NVIDIA H200",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA A100-SXM4-80GB",
)


@pytest.mark.parametrize("wheel", wheels(), ids=lambda w: f"{w.first}{w.local}{w.machine}")
@pytest.mark.parametrize("device", DEVICES)
def test_a_build_with_code_for_the_device_is_fine(wheel, device):
    local = wheel.local[-1]
    report = (
        f"OS: Ubuntu 22.04.5 LTS ({wheel.machine})\n"
        f"PyTorch version: {wheel.last[0]}.{wheel.last[1]}.0+{local}\n"
        f"CUDA used to build PyTorch: {local[2:4]}.{local[4:]}\nIs CUDA available: True\n"
        f"GPU models and configuration: \nGPU 0: {device}\n\nNvidia driver version: 610.43.02\n"
    )
    assert wrong(report) == set()


TEXTS = texts()
PLAIN = [one for one in TEXTS if one.plain]
OPEN_VENDOR = {"container.toml, rule 6", "pci.toml, rule 1, case 2"}
"""Texts that name no vendor, or no failure: what stands beside them says more."""


@settings(max_examples=examples(150))
@given(st.sampled_from(PLAIN), st.randoms(use_true_random=False))
def test_damage_does_not_change_the_codes(said, chance):
    assert wrong(damaged(said.text, chance)) == said.findings, said.what


def damaged(text: str, chance: random.Random) -> str:
    """Prefixes, quoting, other line breaks and text around it, as pastes have them."""
    lines = text.splitlines()
    mark = chance.choice(("", "> ", "web-1  | ", "2026-11-20T08:00:00.123456789Z ", "    "))
    lines = [mark + line for line in lines]
    if chance.random() < 0.3:
        lines = ["```", *lines, "```"]
    if chance.random() < 0.3:
        lines = ["Hello, I get this today:", "", *lines, "", "Thank you"]
    return chance.choice(("\n", "\r\n")).join(lines) + "\n"


@settings(max_examples=examples(100))
@given(st.sampled_from([one for one in PLAIN if one.what not in OPEN_VENDOR]), st.booleans())
def test_a_healthy_log_beside_it_does_not_change_the_codes(said, before):
    parts = [said.text, HEALTHY["vllm-start-cuda-8xh100"]]
    text = "\n\n".join(parts if before else parts[::-1])
    assert wrong(text + "\n") == said.findings, said.what


def test_a_device_that_an_error_names_is_not_one_more():
    names = ("collect-env/17-2080ti-8x-sm75.txt", "errors/15-bf16-on-2080ti.txt")
    text = "\n".join((DATA / "reports" / name).read_text("utf-8") for name in names)
    assert wrong(text) == {"VA1301"}


@settings(max_examples=examples(100))
@given(st.sampled_from(TEXTS), st.integers(80, 132))
def test_a_line_that_a_terminal_broke_is_read_whole(said, width):
    if "\n" not in said.text.strip() and "|" not in said.text:
        broken = textwrap.wrap(said.text, width, break_long_words=False, break_on_hyphens=False)
        assert wrong("\n".join(broken) + "\n") == said.findings, said.what


@pytest.mark.parametrize("said", TEXTS, ids=lambda said: said.what)
def test_inside_source_code_it_means_nothing(said):
    quoted = re.sub(r'["\\]', "", said.text)
    code = "".join(f'    raise RuntimeError("{line}")\n' for line in quoted.splitlines())
    facts = parse_report(code)
    found = diagnose(ExaminedHost(parse_report("import torch\n" + code)))
    told = {one.source for one in facts.accelerators} | {one.source for one in facts.drivers}
    if not told and facts.torch is None and not facts.packages and not facts.environment:
        assert {one.code for one in found if one.severity is Severity.ERROR} == set()
