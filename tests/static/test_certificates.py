"""The certificates under docs/ stay sound, whatever release of the suite reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_adapter_conformance.certificate.verification import faults, load

pytestmark = pytest.mark.static

FOLDER = Path(__file__).parents[2] / "docs/certificates"
COMMITTED = sorted(FOLDER.glob("*.json"))


def test_there_is_one_from_real_hardware_that_is_not_the_host():
    assert FOLDER / "cuda-L2.json" in COMMITTED


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_it_is_sound(path):
    document = load(path)
    assert faults(document) == []
    assert document["grade"] == "release"
    assert document["level_reached"] == path.stem.rpartition("-")[2]
