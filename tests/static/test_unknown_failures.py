"""No all-clear over a failure: what no rule explains is quoted, and ends with 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_adapter.cli.main import main
from vllm_adapter.contract.finding import Finding, Severity
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

UNEXPLAINED = sorted((Path(__file__).parent.parent / "data/unexplained").glob("*.txt"))


def said(text: str) -> dict[str, Finding]:
    found = diagnose(ExaminedHost(parse_report(text)))
    return {one.code: one for one in found if one.severity is not Severity.NOTE}


@pytest.mark.parametrize(
    "text",
    [
        "Fatal Python error: none_dealloc: deallocating None",
        "[rank0]: ValueError: XCCL backend needs torch built with USE_XCCL",
        "./start.sh: line 3: 1999 Segmentation fault      (core dumped) python3 serve.py",
        "start fails:WonderError: the gizmo is not aligned",
        "[08:11:46][ABCD][E]queue.c:925 : ioctl alloc of a ring failed -1",
        "E0301 10:00:00.1 311 gizmo.cc:12] not aligned",
        "worker ended, exit code 134",
        'Traceback (most recent call last):\n  File "/x/y.py", line 3, in f\n    g()\nodd.Thing',
    ],
)
def test_a_failure_of_any_form_is_quoted(text, tmp_path, capsys):
    found = said(f"NVIDIA-SMI 550.54.15  Driver Version: 550.54.15\n{text}\n")
    assert found.keys() & {"VA1918", "VA1923"}
    file = tmp_path / "report.txt"
    file.write_text(text + "\n")
    assert main(["doctor", "--report", str(file)]) == 1
    assert "nothing wrong found" not in capsys.readouterr().out


@pytest.mark.parametrize("file", UNEXPLAINED, ids=lambda one: one.stem)
def test_errors_that_are_no_fault_of_the_box_are_not_passed_over(file):
    assert said(file.read_text("utf-8"))


def test_what_it_was_raised_in_and_where_to_search():
    text = (
        'Traceback (most recent call last):\n  File "/v/site-packages/vllm/v1/core.py", line 70\n'
        "    self.step()\nvllm.wonders.UnheardOf: the gizmo is not aligned\n"
    )
    one = said(text)["VA1918"]
    assert "vllm/v1/core.py:70" in one.cause and "vllm-project/vllm" in one.action


def test_a_consequence_of_what_is_explained_is_not_said():
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert said(text).keys() == {"VA1705"}
    alone = said(text.splitlines()[1] + "\n")
    assert alone.keys() == {"VA1923"}


def test_an_earlier_failure_that_is_not_explained_is_said_beside():
    text = (
        'Traceback (most recent call last):\n  File "/x/y.py", line 3, in f\n    g()\n'
        "odd.Thing: not aligned\n\n"
        + "INFO all is well\n" * 5
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    found = said(text)
    assert found.keys() == {"VA1705", "VA1918"}
    assert found["VA1918"].severity is Severity.WARNING


def test_a_request_that_a_server_outlived_is_no_failure():
    text = (
        "ERROR 11-20 08:14:12 [x.py:200] odd request\nValueError: too odd\n"
        "INFO 11-20 08:14:22 [loggers.py:127] Engine 000: Avg prompt throughput: 1.2 tokens/s\n"
    )
    assert said(text) == {}


def test_of_a_large_log_lines_alike_are_read_at_their_start_and_end():
    line = "(Worker pid=7) INFO 11-20 08:14:22 [loggers.py:127] step {} took {} ms in all of it\n"
    text = "".join(line.format(i, i * 3) for i in range(40_000)) + "odd.WonderError: not aligned\n"
    facts = parse_report(text)
    assert len(facts.report) < 500 and facts.report[-1].number == 40_001
    assert said(text).keys() == {"VA1918"}


def test_of_a_text_that_is_too_long_the_middle_is_left_out():
    words = ("alpha", "beta", "gamma", "delta")
    lines = [
        " ".join(words[(i >> k) % 4] for k in range(0, 32, 2)) + chr(97 + i % 26) * (i % 40)
        for i in range(30_000)
    ]
    facts = parse_report("\n".join([*lines, "odd.WonderError: not aligned", ""]))
    assert sum(len(one.text) for one in facts.report) < 2_000_000
    assert facts.report[0].number == 1 and facts.report[-1].text.startswith("odd")
