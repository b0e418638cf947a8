"""`devices --dtype`: what drivers and chips allow, and what a downgrade costs in bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_adapter.cli.main import main

pytestmark = pytest.mark.static

REPORTS = Path(__file__).parent.parent / "data/reports"


def terms(capsys, name: str, *words: str) -> list[dict]:
    main(["devices", "--json", "--report", str(REPORTS / name), *words])
    return json.loads(capsys.readouterr().out)["terms"]


def downgrades(one: dict) -> list[tuple]:
    return [
        (d["feature"], d["to"], d["bytes_after"])
        for d in one["decisions"]
        if d["outcome"] == "downgrade"
    ]


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("ascend/04-npu-smi-8x910b3.txt", "bfloat16"),
        ("collect-env/17-2080ti-8x-sm75.txt", "float16"),
        ("other-vendors/04-mthreads-topo-table.txt", None),
    ],
)
def test_eight_bits_become_sixteen_and_the_bytes_double(capsys, name, to):
    words = ("--dtype", "float8_e4m3fn", "--weight-bytes", "7000000001", "--kv-bytes", "30")
    found = terms(capsys, name, *words)
    if to is None:  # no descriptor is for a device without name and arch: nothing is claimed
        assert found == []
        return
    assert len(found) == 8
    for one in found:
        cost = {"weights": 14000000002, "kv": 60}
        assert downgrades(one) == [("float8_e4m3fn", to, cost)]


def test_what_is_not_wanted_is_not_downgraded(capsys):
    found = terms(capsys, "ascend/04-npu-smi-8x910b3.txt")
    assert [downgrades(one) for one in found] == [[]] * 8
    assert all(any("128" in line for line in one["advice"]) for one in found)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--dtype", "fp9"), "there is no dtype 'fp9'"),
        (("--weight-bytes", "-1"), "a size in bytes is negative"),
        (("--kv-bytes", "30"), "a size is given, and no dtype that it is of"),
        (("--kv-bytes", "many"), "invalid int value"),
    ],
)
def test_bad_input_is_2(capsys, words, sentence):
    assert main(["devices", *words]) == 2
    assert sentence in capsys.readouterr().err
