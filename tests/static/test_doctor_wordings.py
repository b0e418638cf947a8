"""The doctor on further wordings of failures, and on texts in which nothing is wrong.

`data/doctor_wordings.json` has short reports with the codes of findings that they must get, no
more and no less, and of notes that must be there. The samples of rules stand beside the rules.
"""

from __future__ import annotations

import pytest
from findings_samples import wordings

from vllm_adapter.contract.finding import Severity
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

WORDINGS = wordings()


@pytest.mark.parametrize("said", WORDINGS, ids=lambda said: said["what"])
def test_a_failure_that_names_itself_gets_its_code(said):
    both = diagnose(ExaminedHost(parse_report(said["text"])))
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
