"""The certificates under docs/ stay sound, whatever release of the suite reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vllm_adapter_conformance.certificate.verification import faults, load

pytestmark = pytest.mark.static

FOLDER = Path(__file__).parents[2] / "docs/certificates"
COMMITTED = sorted(FOLDER.glob("*.json"))


def test_readme_links_only_what_is_there_and_verifies():
    text = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    linked = [
        FOLDER.parents[1] / path for path in re.findall(r"\]\((docs/certificates/[^)]*)\)", text)
    ]
    assert linked
    for path in linked:
        assert faults(load(path)) == [], path


def test_there_is_one_from_real_hardware_that_is_not_the_host():
    assert FOLDER / "cuda-L2.json" in COMMITTED


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_it_is_sound(path):
    document = load(path)
    assert faults(document) == []
    assert document["grade"] == "release"
    assert document["level_reached"] == path.stem.rpartition("-")[2]
