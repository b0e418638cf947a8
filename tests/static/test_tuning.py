"""Tables of measured choices: which entry speaks for a case, and which files are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter import InputError
from vllm_adapter.contract.tuning import (
    SCHEMA,
    TuningEntry,
    TuningTable,
    bucket_of,
    choose,
    merged,
    read_table,
    write_table,
)

sizes = st.dictionaries(st.sampled_from(["rows", "width"]), st.integers(0, 10**6), min_size=1)


def entry(choice, rows=8, operator="linear", dtype="float32"):
    return TuningEntry(operator, dtype, {"rows": rows}, choice, 1.0, 2.0, 3)


def table(*entries, units=4, arch="x86_64", digest="0"):
    return TuningTable(SCHEMA, "cpu", arch, units, digest, {"torch": "2.13"}, entries)


@given(sizes)
def test_a_bucket_is_the_power_of_two_that_holds_the_size(given_sizes):
    found = bucket_of(given_sizes)
    assert found.keys() == given_sizes.keys()
    for name, size in given_sizes.items():
        assert found[name] & (found[name] - 1) == 0
        assert size <= found[name] < max(1, 2 * size)
    assert bucket_of(found) == found


def test_the_same_count_of_units_goes_before_the_arch_and_the_arch_before_the_default():
    exact, near = table(entry({"warps": 2})), table(entry({"warps": 4}), units=8)
    ask = ("x86_64", 4, "linear", "float32", {"rows": 5})
    assert choose([near, exact], *ask).choice == {"warps": 2}
    assert choose([near, exact], *ask).how == "exact"
    assert (choose([near], *ask).choice, choose([near], *ask).how) == ({"warps": 4}, "arch")
    for other in (
        ("aarch64", 4, "linear", "float32", {"rows": 5}),
        ("x86_64", 4, "linear", "float16", {"rows": 5}),
        ("x86_64", 4, "rms_norm", "float32", {"rows": 5}),
        ("x86_64", 4, "linear", "float32", {"rows": 9}),
        ("x86_64", 4, "linear", "float32", {"width": 5}),
    ):
        found = choose([near, exact], *other)
        assert (found.choice, found.how) == ({}, "default")


def test_a_new_table_keeps_what_it_does_not_replace():
    old = table(entry({"warps": 1}), entry({"warps": 2}, rows=16))
    new = table(entry({"warps": 8}))
    assert {e.bucket["rows"]: e.choice["warps"] for e in merged(old, new).entries} == {8: 8, 16: 2}
    for other in (table(digest="1"), table(units=5), table(arch="x"), None):
        assert merged(other, new) == new


def test_a_table_comes_back_as_it_was_written(tmp_path):
    made = table(entry({"packed": True, "tile": 64}))
    write_table(tmp_path / "cpu.json", made)
    assert read_table(tmp_path / "cpu.json") == made


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": "vllm-adapter/tuning/2.0"}, "no tuning table of this release"),
        ({"schema": 5}, "no tuning table of this release"),
        ({"units": "many"}, r"at `\$.units`"),
        ({"entries": [{"operator": "linear"}]}, "missing required field"),
        ({"surprise": 1}, "unknown field"),
    ],
)
def test_what_is_no_table_is_refused_in_a_sentence(tmp_path, change, sentence):
    file = tmp_path / "table.json"
    write_table(file, table(entry({})))
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | change), encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        read_table(file)
