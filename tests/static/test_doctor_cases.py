"""The doctor on real reports with known answers: every named fault, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_adapter.cli.main import main
from vllm_adapter.contract.finding import Severity
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.faults import has_empty_place
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

FOLDER = Path(__file__).parent.parent / "data/reports"
ANSWERS = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def found(raw: bytes) -> tuple[set[str], set[str]]:
    """(codes of findings, codes of notes)."""
    both = diagnose(ExaminedHost(parse_report(raw)))
    notes = {one.code for one in both if one.severity is Severity.NOTE}
    return {one.code for one in both if one.severity is not Severity.NOTE}, notes


@pytest.mark.parametrize("name", ANSWERS)
def test_a_report_gets_the_right_codes(name):
    findings, notes = found((FOLDER / name).read_bytes())
    assert findings == set(ANSWERS[name]["findings"])
    assert notes >= set(ANSWERS[name]["notes"])


@pytest.mark.parametrize("name", ANSWERS)
def test_every_finding_is_whole(name):
    box = ExaminedHost(parse_report((FOLDER / name).read_bytes()))
    for one in diagnose(box):
        assert one.evidence and one.cause and one.action
        assert "{" not in one.cause + one.action.replace("{GPU", "")
        assert not has_empty_place(one.cause) and not has_empty_place(one.action)
        for evidence in one.evidence:
            if evidence.source.startswith("line "):
                number = int(evidence.source.removeprefix("line "))
                line = next(x for x in box.facts.report if x.number == number)
                assert evidence.text == line.text.strip()


@pytest.mark.parametrize(
    ("text", "recognised"),
    [
        ("hello\n", False),
        ("{\n", False),
        ("NVIDIA-SMI 550.54.15  Driver Version: 550.54.15\n", True),
    ],
)
def test_a_text_in_which_nothing_is_known_proves_nothing(text, recognised, tmp_path, capsys):
    file = tmp_path / "report.txt"
    file.write_text(text)
    code = 0 if recognised else 1
    assert main(["doctor", "--report", str(file)]) == code
    said = capsys.readouterr().out
    assert ("proves nothing" in said) is not recognised
    assert ("nothing wrong found" in said) is recognised
    assert main(["doctor", "--json", "--report", str(file)]) == code
    assert json.loads(capsys.readouterr().out)["recognised"] is recognised


def test_every_report_has_an_answer():
    files = {str(file.relative_to(FOLDER)) for file in FOLDER.glob("*/*.txt")}
    assert set(ANSWERS) == files
