"""Texts of strangers are bounded before they are printed or handed on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.cli.output import clean, table
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord
from vllm_adapter.files import MAX_TEXT, bounded

pytestmark = pytest.mark.static

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=60), inner),
    max_leaves=12,
)


def longest(value):
    if isinstance(value, dict):
        return max((longest(one) for pair in value.items() for one in pair), default=0)
    if isinstance(value, list):
        return max(map(longest, value), default=0)
    return len(value) if isinstance(value, str) else 0


@given(VALUES)
def test_no_text_is_longer_and_short_ones_stay(value):
    assert longest(bounded(value, 40)) <= 40
    assert bounded(value, 10_000) == value


def test_a_cut_text_says_how_long_it_was():
    assert bounded("x" * 900_000).endswith("... (900,000 characters)")
    assert len(bounded("x" * 900_000)) == MAX_TEXT


def test_a_table_and_a_line_are_bounded():
    long = "x" * 900_000
    assert len(clean(long)) == 2000
    assert len(table([("acme", long, "ok")], ("NAME", "VENDOR", "STATUS"))) < 1000


def test_records_hand_on_bounded_texts():
    long = "x" * 900_000
    device = DeviceRecord(0, "acme:0", long, arch=long, live={"identity": {"arch": long}})
    record = AdapterRecord(
        "acme", "vllm-adapter-acme", long, "p", reason=long, evidence=(long,), devices=(device,)
    )
    assert longest(record.to_json()) == MAX_TEXT
    assert len(json.dumps(record.to_json())) < 10 * MAX_TEXT
    assert AdapterRecord.from_json(record.to_json()).devices[0].name.startswith("xxx")


@pytest.mark.parametrize("where", [(), ("--probe",), ("--json",), ("--probe", "--json")])
def test_a_long_vendor_is_cut_in_every_output(site, where):
    site.make("hot", vendor="x" * 900_000, device={"torch_type": "cpu"})
    done = site.run("-m", "vllm_adapter.cli", "list", *where)
    assert done.returncode == 0, done.stderr
    assert "x" * 100 in done.stdout and "x" * 5000 not in done.stdout + done.stderr
