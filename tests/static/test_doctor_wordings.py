"""The doctor on failures in the words of the programs that print them.

`data/doctor_wordings.json` has short reports with the codes of findings that they must get, no
more and no less, and of notes that must be there. Their versions and counts differ from those of
the reports under `data/reports`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_adapter.doctor.diagnose import all_rules, diagnose
from vllm_adapter.doctor.finding import Severity
from vllm_adapter.doctor.rule import Box
from vllm_adapter.doctor.text_rule import TextRule
from vllm_adapter.host.report import parse_report

pytestmark = pytest.mark.static

FILE = Path(__file__).parent.parent / "data/doctor_wordings.json"
WORDINGS = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("said", WORDINGS, ids=lambda said: said["what"])
def test_a_failure_that_names_itself_gets_its_code(said):
    both = diagnose(Box(parse_report(said["text"])))
    notes = {one.code for one in both if one.severity is Severity.NOTE}
    findings = {one.code for one in both if one.severity is not Severity.NOTE}
    assert findings == set(said["findings"])
    assert notes >= set(said["notes"])
    for one in both:
        assert one.evidence and one.cause and one.action
        assert "{" not in one.cause


def test_the_names_are_unique():
    names = [said["what"] for said in WORDINGS]
    assert len(names) == len(set(names))


def test_words_are_small_letters_and_part_of_what_is_looked_for():
    for rule in all_rules():
        if isinstance(rule, TextRule):
            assert rule.words and all(word == word.lower() for word in rule.words), rule.pattern


def test_every_code_of_a_rule_is_shown_by_a_text():
    answers = json.loads((FILE.parent / "reports/expected.json").read_text(encoding="utf-8"))
    shown = {code for one in (*WORDINGS, *answers.values()) for code in one["findings"]}
    shown |= {code for one in (*WORDINGS, *answers.values()) for code in one["notes"]}
    assert {rule.code for rule in all_rules()} <= shown
