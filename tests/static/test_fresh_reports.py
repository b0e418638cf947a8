"""Batches of public reports: each report of a batch has its answer and its first-try verdict."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import pytest

from vllm_adapter.contract.codes import CODES

pytestmark = pytest.mark.static

FOLDER = Path(__file__).parent.parent / "data/fresh_reports"
BATCHES = sorted(one for one in FOLDER.iterdir() if one.is_dir())


@pytest.mark.parametrize("batch", BATCHES, ids=lambda one: one.name)
def test_a_batch_is_whole(batch):
    answers = tomllib.loads((batch / "answers.toml").read_text("utf-8"))
    names = {f"{name}.txt" for name in answers}
    assert len(names) == 20 and all(answer["source"] for answer in answers.values())
    first = list(csv.DictReader((batch / "first_try.csv").read_text("utf-8").splitlines()))
    assert sorted(row["file"] for row in first) == sorted(names)
    assert {row["verdict"] for row in first} <= {"right", "partial", "unknown", "wrong"}
    codes = json.loads((batch / "codes.json").read_text("utf-8"))
    assert codes.keys() == names
    assert {code for answer in codes.values() for code in answer["findings"]} <= set(CODES)


def test_a_text_of_somebody_else_is_not_kept_here():
    assert not list(FOLDER.glob("*/*.txt"))
