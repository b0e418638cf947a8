"""Environment reports after a paste: generated dumps and real ones, damaged and cut."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import REPORTS, of, versions

from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, TorchBuild
from vllm_adapter_doctor.report.parsers import (
    collect_env,
    env_vars,
    lscpu,
    pip_list,
    sglang_env,
    surroundings,
)
from vllm_adapter_doctor.report.read import parse_report
from vllm_adapter_doctor.report.text import clean

pytestmark = pytest.mark.static
CASES: list[Path] = sorted(REPORTS.glob("collect-env/*.txt")) + sorted(
    REPORTS.glob("ascend/0[79]*.txt")
)
NAMES = ["NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090", "Tesla T4", "NVIDIA L20"]


@st.composite
def dumps(draw: st.DrawFn) -> tuple[str, HostFacts]:
    """A dump of one layout and the facts that it tells."""
    count = draw(st.integers(1, 9))
    name = draw(st.sampled_from(NAMES))
    cuda = draw(st.sampled_from(["11.8", "12.4", "13.0"]))
    driver = (
        f"{draw(st.integers(450, 600))}.{draw(st.integers(10, 99))}.{draw(st.integers(10, 99))}"
    )
    version = f"2.{draw(st.integers(0, 13))}.{draw(st.integers(0, 3))}+cu{cuda.replace('.', '')}"
    cpus = draw(st.integers(1, 200)) * 2
    banner = draw(st.booleans())
    pad = 29 if banner else 0
    lines = ["Collecting environment information..."]

    def head(title: str) -> None:
        if banner:
            lines.extend(["", "=" * 30, f"        {title}", "=" * 30])

    def say(key: str, value: str) -> None:
        lines.append(f"{key:<{pad}}: {value}")

    head("System Info")
    say("OS", "Ubuntu 22.04.5 LTS (x86_64)")
    say("Libc version", "glibc-2.35")
    head("PyTorch Info")
    say("PyTorch version", version)
    say("CUDA used to build PyTorch", cuda)
    say("ROCM used to build PyTorch", "N/A")
    say("Python version", "3.12.3 (main, Jan 17 2025, 18:03:48) [GCC 13.3.0] (64-bit runtime)")
    say("Python platform", "Linux-5.15.0-91-generic-x86_64-with-glibc2.35")
    head("CUDA / GPU Info")
    say("Is CUDA available", "True")
    say("CUDA runtime version", "12.0.140")
    say("GPU models and configuration", "")
    lines += [f"GPU {index}: {name}" for index in range(count)]
    lines.append("")
    say("Nvidia driver version", driver)
    head("CPU Info")
    if not banner:
        lines.append("CPU:")
    lines += [
        "Architecture:                    x86_64",
        f"CPU(s):                          {cpus}",
        f"On-line CPU(s) list:             0-{cpus - 1}",
        "Model name:                      Some(R) CPU @ 2.00GHz",
        "Core(s) per socket:              " + str(cpus // 2),
        "Socket(s):                       2",
        f"NUMA node0 CPU(s):               0-{cpus // 2 - 1}",
        f"NUMA node1 CPU(s):               {cpus // 2}-{cpus - 1}",
    ]
    head("Versions of relevant libraries")
    lines += ["", f"[pip3] torch=={version}", "[conda] Could not collect"]
    head("vLLM Info")
    say("vLLM Version", "0.11.0")
    lines += ["vLLM Build Flags:", "CUDA Archs: Not Set; ROCm: Disabled", "", "NCCL_DEBUG=INFO"]
    lines.append("")
    facts = parse_report("\n".join(lines))
    assert facts.torch == TorchBuild(version, version.split("+")[1], cuda, available=True)
    assert versions(facts) == {"nvidia": driver, "cuda-toolkit": "12.0.140"}
    assert of(facts, "nvidia-smi -L") == [("cuda", index, name, None) for index in range(count)]
    assert (facts.cpu.logical, facts.cpu.cores, len(facts.numa)) == (cpus, cpus // 2 * 2, 2)
    assert facts.environment == (("NCCL_DEBUG", "INFO"),)
    return "\n".join(lines), facts


DAMAGE = {
    "trailing blanks": lambda text: text.replace("\n", "     \n"),
    "padding": lambda text: "\n".join(line.ljust(120) for line in text.split("\n")),
    "kubernetes": lambda text: "\n".join(
        f"2025-07-16T23:02:53.123456Z stdout F {line}" for line in text.split("\n")
    ),
    "ray": lambda text: "\n".join(
        f"(RayWorkerWrapper pid=77, ip=10.0.0.3) {line}" for line in text.split("\n")
    ),
    "rank": lambda text: "\n".join(f"[rank0]: {line}" for line in text.split("\n")),
    "quoted": lambda text: "\n".join(f"> {line}" for line in text.split("\n")),
    "twice quoted": lambda text: "\n".join(f"> > {line}" for line in text.split("\n")),
    "compose": lambda text: "\n".join(f"vllm-1  | {line}" for line in text.split("\n")),
    "indented": lambda text: "\n".join(f"    {line}" for line in text.split("\n")),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "fenced": lambda text: f"```text\n{text}\n```",
    "fenced on the line": lambda text: f"```{text}```",
    "details": lambda text: f"<details><summary>env</summary>\n<pre>{text}</pre></details>",
    "coloured": lambda text: text.replace("PyTorch version", "\x1b[4mPyTorch version\x1b[0m"),
    "string": lambda text: '{"log": "' + text.replace("\n", "\\n") + '"}',
    "logged": lambda text: "\n".join(
        f"INFO 07-10 09:00:00 [env.py:12] {line}" for line in text.split("\n")
    ),
    "utf-16": lambda text: text.encode("utf-16"),
    "blank lines": lambda text: text.replace("\n", "\n\n"),
}


def damaged(text: str, damage: str) -> str | bytes:
    """The text with that damage on each line, and its last line closed as before."""
    changed = DAMAGE[damage](text.rstrip("\n"))
    return changed + "\n" if isinstance(changed, str) else changed + "\n".encode("utf-16-le")


def shown(facts: HostFacts) -> dict[str, object]:
    plain = {field.name: getattr(facts, field.name) for field in fields(facts)}
    plain["os"] = (facts.os.name, facts.os.release, facts.os.machine, facts.os.libc)
    del plain["report"]
    return plain


@settings(max_examples=examples(60))
@given(dumps(), st.sampled_from(sorted(DAMAGE)))
def test_damage_changes_no_answer(dump: tuple[str, HostFacts], damage: str) -> None:
    text, facts = dump
    assert shown(parse_report(damaged(text, damage))) == shown(facts)


def check_part(part: HostFacts, whole: HostFacts) -> None:
    """No value of the part contradicts the whole."""
    for section in ("os", "cpu", "torch", "memory", "vllm"):
        one, other = getattr(part, section), getattr(whole, section)
        for field in fields(one) if one is not None else ():
            value = getattr(one, field.name)
            if value in (None, ()) or field.name in ("environment", "platform", "plugins"):
                continue
            assert other is not None
            assert value == getattr(other, field.name), (section, field.name)
    devices = [(one.vendor, one.index, one.name, one.source) for one in whole.accelerators]
    assert all((d.vendor, d.index, d.name, d.source) in devices for d in part.accelerators)
    assert set(part.drivers) <= set(whole.drivers)
    assert set(part.packages) <= set(whole.packages)
    numa = {node.id: node.cpus for node in whole.numa}
    assert all(numa[node.id] == node.cpus for node in part.numa)


@settings(max_examples=examples(60))
@given(dumps(), st.data())
def test_a_dump_that_was_cut_says_less_and_nothing_else(
    dump: tuple[str, HostFacts], data: st.DataObject
) -> None:
    lines = dump[0].split("\n")
    stop = data.draw(st.integers(0, len(lines)))
    check_part(parse_report("\n".join(lines[:stop]) + "\n" * (stop < len(lines))), dump[1])


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_that_was_cut_says_less_and_nothing_else(path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    whole = only_here(path.read_text("utf-8"))
    draw = random.Random(path.name)
    for stop in draw.sample(range(len(lines)), min(25, len(lines))):
        check_part(only_here("\n".join([*lines[:stop], ""])), whole)


@settings(max_examples=examples(60))
@given(dumps(), st.data())
def test_a_last_line_that_was_cut_is_not_believed(
    dump: tuple[str, HostFacts], data: st.DataObject
) -> None:
    lines = [number for number, letter in enumerate(dump[0]) if letter == "\n"]
    stop = data.draw(st.integers(lines[10], len(dump[0])))
    check_part(parse_report(dump[0][:stop]), dump[1])


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_damage_changes_no_answer_of_a_case(damage: str) -> None:
    for path in CASES[:: 1 if damage in ("compose", "logged", "indented") else 4]:
        text = path.read_text("utf-8")
        assert shown(only_here(damaged(text, damage))) == shown(only_here(text)), path.stem


def only_here(text: str | bytes) -> HostFacts:
    """What the parsers of software say, without those of tables and matrices."""
    from vllm_adapter_doctor.report.merge import merge

    report = clean(text)
    parsers = (surroundings, collect_env, sglang_env, lscpu, pip_list, env_vars)
    return merge(parser.parse(report) for parser in parsers)


@settings(max_examples=examples(150))
@given(st.text(max_size=300), st.sampled_from(CASES), st.integers(0, 4000))
def test_no_text_breaks_a_parser(noise: str, path: Path, at: int) -> None:
    text = path.read_text("utf-8")
    only_here(text[max(0, at - 300) : at] + noise + text[at : at + 300])
    assert only_here(noise).accelerators == () or "GPU" in noise


def test_accelerators_are_of_the_contract() -> None:
    for path in CASES:
        for device in parse_report(path.read_bytes()).accelerators:
            assert isinstance(device, Accelerator)
            assert device.vendor == device.vendor.lower()
