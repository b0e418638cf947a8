"""A damaged report may make an answer unknown, and never another vendor's, device's or fault's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.finding import Severity
from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

FOLDER = Path(__file__).parent.parent / "data/reports"
ANSWERS = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
TEXTS = {name: (FOLDER / name).read_bytes().decode("utf-8", "replace") for name in ANSWERS}
UNKNOWN = {"VA1002", "VA1804", "VA1918", "VA1923"}
"""Findings that say that something is not known, or is cut."""


def answer(text: str) -> tuple[set[str], set[tuple[str, str]], set[str]]:
    """(vendors, devices with a name, codes of faults)."""
    facts = parse_report(text)
    box = ExaminedHost(facts)
    devices = inventory(facts).devices
    codes = {one.code for one in diagnose(box) if one.severity is not Severity.NOTE}
    vendors = {one.vendor for one in devices}
    if not devices and box.vendor:
        vendors = {box.vendor.name}
    return vendors, {(one.vendor, one.name) for one in devices if one.name}, codes


def allowed(codes: set[str]) -> set[str]:
    """The faults of the whole report, and those that they explained in it."""
    hidden = {code for cause in codes for code in CODES[cause].explains}
    same = {"VA1203", "VA1204"}  # who lacks the code is told by a line that may be cut
    return codes | hidden | UNKNOWN | (same if codes & same else set())


def holds(damaged: str, *whole: str, more: frozenset[str] = frozenset()) -> None:
    vendors, devices, codes = answer(damaged)
    known = [answer(one) for one in whole]
    assert vendors <= set().union(*(one[0] for one in known)) or not known[0][0]
    assert {vendor for vendor, _ in devices} <= set().union(*(one[0] for one in known))
    assert codes <= allowed(set().union(more, *(one[2] for one in known)))


NAMES = st.sampled_from(sorted(TEXTS))


@settings(max_examples=examples(60))
@given(NAMES, st.floats(0, 1), st.booleans())
def test_cut_at_a_line(name, share, end):
    lines = TEXTS[name].splitlines(keepends=True)
    at = int(len(lines) * share)
    holds("".join(lines[:at] if end else lines[at:]), TEXTS[name])


@settings(max_examples=examples(40))
@given(NAMES, NAMES)
def test_glued_to_another(name, other):
    # two boxes are one to who reads them: the torch for the CPU, or the only network card, of one
    # and the devices of the other
    holds(
        f"{TEXTS[name]}\n\n{TEXTS[other]}",
        TEXTS[name],
        TEXTS[other],
        more=frozenset({"VA1201", "VA1503", "VA1805"}),
    )


@settings(max_examples=examples(40))
@given(
    NAMES, st.sampled_from(("web-1  | ", "2026-11-20T08:00:00.123456789Z ", "> ", "> > ", "    "))
)
def test_prefixed_or_quoted(name, mark):
    text = "".join(mark + line for line in TEXTS[name].splitlines(keepends=True))
    holds(text, TEXTS[name])


@settings(max_examples=examples(40))
@given(NAMES)
def test_blanks_collapsed(name):
    holds(re.sub(r"[ \t]+", " ", TEXTS[name]), TEXTS[name])
