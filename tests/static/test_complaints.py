"""The table of complaints names codes and tests that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from vllm_adapter.contract.codes import CODES

pytestmark = pytest.mark.static

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs/complaints.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \|", line)
]
CASES = {
    "test_doctor_wordings.py": {
        one["what"] for one in json.loads((TESTS / "data/doctor_wordings.json").read_text("utf-8"))
    },
    "test_doctor_cases.py": set(
        json.loads((TESTS / "data/reports/expected.json").read_text("utf-8"))
    ),
}


def test_every_complaint_has_a_row():
    assert [int(row[0]) for row in ROWS] == list(range(1, 36))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_is_there(row):
    _, _, answer, tests = row
    assert set(re.findall(r"VA\d{4}", answer)) <= set(CODES)
    named = re.findall(r"`([^`]+)`", tests)
    assert bool(named) != answer.startswith("not answered")
    for name in named:
        file, _, function = name.partition("::")
        function, _, case = function.partition("[")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, name
        if case:
            assert case.removesuffix("]") in CASES[Path(file).name], name
