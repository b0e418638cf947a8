"""`tune`: choices measured in alternation; the best is kept, and taken by the kernels."""

from __future__ import annotations

import json

import pytest
import torch

from vllm_adapter import open_device
from vllm_adapter.cli.main import main
from vllm_adapter.contract.tuning import SCHEMA, TuningTable, read_table, write_table
from vllm_adapter.discovery import tuning_files
from vllm_adapter.engine.ops.quantization import quantize_weight
from vllm_adapter.engine.ops.tuning import TUNING, TuneCase, measure, tuned
from vllm_adapter_cpu import kernels


class Clock:
    """Time that goes on only where the kernel says how long it took."""

    def __init__(self, costs):
        self.now, self.costs, self.asked = 0.0, costs, []

    def __call__(self):
        return self.now

    def run(self):
        tile = tuned("linear", "cpu", torch.float32, {"rows": 5}).get("tile", "default")
        self.asked.append(tile)
        if self.costs[tile] is None:
            raise RuntimeError("out of shared memory")
        self.now += self.costs[tile] * 1e-6


def measured(costs):
    clock = Clock(costs)
    choices = [{"tile": tile} for tile in costs if tile != "default"]
    case = TuneCase("linear", torch.float32, {"rows": 5}, choices, clock.run)
    return measure(case, lambda: None, rounds=5, clock=clock)


def test_the_fastest_is_kept_and_what_cannot_run_left_out():
    entry = measured({"default": 20.0, 16: 12.0, 32: 8.0, 64: None})
    assert entry.choice == {"tile": 32} and entry.bucket == {"rows": 8}
    assert (entry.median_us, entry.default_us, entry.tried) == (8.0, 20.0, 2)
    assert tuned("linear", "cpu", torch.float32, {"rows": 5}) == {}


@pytest.mark.parametrize("other", [20.0, 19.9, 30.0])
def test_what_gains_too_little_leaves_the_default(other):
    assert measured({"default": 20.0, 16: other}).choice == {}


def test_a_default_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match="shared memory"):
        measured({"default": None, 16: 1.0})


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_files, "folder", lambda: tmp_path / "cache")
    yield tmp_path
    TUNING.clear()


def product(rows, dtype=torch.bfloat16):
    weight = quantize_weight(torch.randn(64, 64), "int8")
    x = torch.randn(rows, 64).to(dtype)
    return kernels.quantized_linear_int8(
        x, weight.values, weight.scale, None, None, 64, "int8"
    ), x @ weight.dequantized().to(dtype).T


def test_the_kernel_of_the_cpu_takes_what_was_measured(home, monkeypatch):
    called = []
    packed = torch._weight_int8pack_mm
    monkeypatch.setattr(
        torch, "_weight_int8pack_mm", lambda *args: (called.append(1), packed(*args))[1]
    )
    opened = open_device("cpu")
    record = opened.adapter.record
    for choice, expected in (({"packed": False}, 0), ({"packed": True}, 1)):
        entry = measured({"default": 2.0})
        entry = replace_entry(entry, choice)
        made = TuningTable(
            schema=SCHEMA,
            adapter="cpu",
            arch=opened.capability.identity.arch,
            units=None,
            digest=tuning_files.digest_of(record, opened.capability),
            made_with={},
            entries=(entry,),
        )
        file = tuning_files.cache_file(record)
        file.parent.mkdir(exist_ok=True)
        write_table(file, made)
        open_device("cpu")
        called.clear()
        got, wanted = product(5)
        assert len(called) == expected
        torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.05)
        write_table(file, replace_table(made, digest="of other files"))
        open_device("cpu")
        called.clear()
        product(5)
        assert len(called) == 1  # the kernel's own default


def replace_entry(entry, choice):
    import msgspec

    bucket = {"in_features": 64, "out_features": 64, "rows": 8}
    return msgspec.structs.replace(
        entry, operator="quantized_linear", dtype="bfloat16", bucket=bucket, choice=choice
    )


def replace_table(table, **changes):
    import msgspec

    return msgspec.structs.replace(table, **changes)


def test_the_command_measures_the_cpu_and_writes_a_table(home, capsys, monkeypatch):
    monkeypatch.setattr(kernels, "TUNED_WIDTHS", ((64, 64),))
    monkeypatch.setattr(kernels, "TUNED_ROWS", (1, 4))
    file = home / "table.json"
    command = ["tune", "cpu", "--rounds", "3", "--output", str(file), "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    table = read_table(file)
    assert document["entries"] and document["file"] == str(file)
    assert {entry.operator for entry in table.entries} == {"quantized_linear"}
    assert {entry.dtype for entry in table.entries} == {"float16", "bfloat16"}
    assert {entry.bucket["rows"] for entry in table.entries} == {1, 4}
    assert all(entry.tried == 2 for entry in table.entries)
    assert main(["tune", "cpu", "--op", "rms_norm"]) == 2
    assert "has a choice to measure for rms_norm" in capsys.readouterr().err
    assert main(["tune", "cpu", "--rounds", "1"]) == 2


def test_a_file_that_is_no_table_stops_nothing(home, caplog):
    record = open_device("cpu").adapter.record
    file = tuning_files.cache_file(record)
    file.parent.mkdir(exist_ok=True)
    file.write_text("{", encoding="utf-8")
    assert open_device("cpu").device.type == "cpu"
    assert str(file) in caplog.text
