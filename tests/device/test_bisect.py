"""`vllm-adapter bisect` finds the layer and the operator, and writes a script that fails alone."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import bisect_kernels
import pytest
import torch

from vllm_adapter.cli.main import main
from vllm_adapter_conformance.base.rule import Failure
from vllm_adapter_conformance.bisecting import model as models
from vllm_adapter_conformance.bisecting import recorder, report, search
from vllm_adapter_conformance.bisecting.side import Side, judged
from vllm_adapter_conformance.bisecting.stored import StoredCall, on_host
from vllm_adapter_conformance.plan.find_target import find_target

pytestmark = pytest.mark.device

CPU = Path(__file__).parents[2] / "adapters/cpu/src/vllm_adapter_cpu/capabilities"
TESTS = Path(__file__).parents[1]
LINEAR = {"dtype": "float32", "in_features": 8, "out_features": 3, "bias": False}


@pytest.fixture
def silu(tmp_path, monkeypatch, fresh):
    """Lets the CPU adapter's silu_and_mul be run by a function of `bisect_kernels`."""

    def choose(name):
        (file,) = [f for f in CPU.glob("*.json") if os.uname().machine in f.name]
        raw = json.loads(file.read_text(encoding="utf-8"))
        raw["operators"]["silu_and_mul"] = {
            "support": "full",
            "dtypes": ["float32"],
            "form": "kernel",
            "variant": name,
            "run": f"bisect_kernels:{name}",
        }
        changed = tmp_path / "changed.json"
        changed.write_text(json.dumps(raw), encoding="utf-8")
        monkeypatch.setenv("VA_CAPABILITY", str(changed))
        bisect_kernels._seen.clear()

    return choose


def searched(kind="llama", steps=2):
    side = Side.of(find_target("cpu", "L3"))
    model, given = models.tiny(side.target, kind, "float32")
    return search.search(model, given, side, None, steps, lambda text: None)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "bert"])
def test_a_right_adapter_leaves_nothing(kind, fresh):
    found = searched(kind)
    assert found.verdict == "equal" and found.calls > 10 and found.finding is None
    assert 0 < max(found.worst.values()) <= 1
    assert [one.layer for one in found.growth] == ["0", "1", "the result"]
    assert found.growth[-1].share <= 1 and found.growth[-1].ours > 0
    assert "nothing leaves the reference" in report.headline(found)
    assert report.to_json(found, None, None)["ok"]


def test_the_operator_its_layer_and_its_pattern_are_found(silu, tmp_path):
    silu("silu_without_a_tail")
    found = searched()
    assert found.verdict == "operator"
    finding = found.finding
    assert finding.call.op == "silu_and_mul" and finding.path == "model.layers.0.inner"
    assert finding.forward == 0 and finding.kernel == "bisect_kernels:silu_without_a_tail"
    text = "\n".join([report.headline(found), *report.lines(found, None, None)])
    assert "silu_and_mul, layer 0 of 2" in text
    width = finding.call.facts["hidden"]
    assert f"in the tail: columns from {width - 8} on; they are zeros" in text
    answer = report.to_json(found, None, None)["found"]
    assert answer["operator"] == "silu_and_mul" and answer["layer"] == 0
    # Nothing of the adapter is left in the model.
    assert report.layer_of("model.norm") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "alone"), [("silu_without_a_tail", True), ("silu_wrong_from_its_third_call", False)]
)
def test_the_script_says_whether_the_call_fails_alone(name, alone, silu, tmp_path, monkeypatch):
    silu(name)
    found = searched()
    # Two layers call it twice in the prefill: the third call is in the first decode step.
    expected = 0 if alone else 1
    assert found.finding.forward == expected
    script = report.write_script(tmp_path / "repro", "cpu", 0, "tiny llama", found.finding)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == (1 if alone else 0), done.stdout + done.stderr
    assert report.fails_alone(script) is alone
    lines = "\n".join(report.lines(found, script, alone))
    assert f"again     python {script}" in lines
    assert ("passes alone" in lines) is not alone


def test_a_kernel_that_raises_is_the_finding(silu):
    silu("silu_raises")
    found = searched()
    assert found.finding.call.op == "silu_and_mul"
    assert "RuntimeError: no tile for" in found.finding.failure.seen


def test_errors_that_add_up_are_told_by_layer(silu, monkeypatch):
    silu("silu_without_a_tail")
    monkeypatch.setattr(recorder, "judged", lambda call, result, args: 0.9)
    found = searched()
    assert found.verdict == "accumulates" and found.growth[-1].share > 1
    text = "\n".join(report.lines(found, None, None))
    assert "share of what is allowed" in text and "the result" in text
    answer = report.to_json(found, None, None)
    assert not answer["ok"] and [one["layer"] for one in answer["growth"]][-1] == "the result"


def test_what_fails_outside_of_operators_is_told(fresh, monkeypatch):
    real, calls = search.run, []

    def run(model, *rest):
        calls.append(model)
        if len(calls) == 2:
            raise RuntimeError("no kernel for aten::add")
        return real(model, *rest)

    monkeypatch.setattr(search, "run", run)
    found = searched()
    assert found.verdict == "elsewhere" and "aten::add" in found.error


def stored(**changes):
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(4, 8, generator=draw)
    weight = torch.randn(3, 8, generator=draw)
    return StoredCall("linear", LINEAR, [x, weight, None, 3], "a test", **changes)


def test_a_call_is_judged_as_the_suite_does():
    call = stored()
    x, weight, *_ = call.args
    assert 0 <= judged(call, x @ weight.T, call.args) <= 1
    with pytest.raises(Failure) as wrong:
        judged(call, (x @ weight.T).bfloat16().float(), call.args)
    assert wrong.value.cause == "precision" and wrong.value.share > 1
    for result in (x @ weight.T[:, :2], (x @ weight.T).double(), [], None, "text"):
        with pytest.raises(Failure):
            judged(call, result, call.args)


def test_a_write_beside_the_result_is_found():
    call = stored()
    args = [
        argument.clone() if isinstance(argument, torch.Tensor) else argument
        for argument in call.args
    ]
    result = args[0] @ args[1].T
    args[0][1, 2] = math.nan
    with pytest.raises(Failure, match="no write outside"):
        judged(call, result, args)


def test_a_call_comes_back_from_its_file_with_its_strides(tmp_path):
    fused = torch.randn(5, 30)
    call = StoredCall("linear", LINEAR, [on_host(fused[:, 2:10]), fused[:3, :8], None, 3], "x")
    assert call.args[0].stride() == (30, 1)
    call.save(tmp_path / "call.pt")
    back = StoredCall.load(tmp_path / "call.pt")
    assert back.facts == LINEAR and back.args[2:] == [None, 3]
    assert torch.equal(back.args[0], fused[:, 2:10]) and back.args[0].stride() == (30, 1)
    placed = back.placed(torch.device("cpu"))
    assert torch.equal(placed[0], fused[:, 2:10]) and placed[0].stride() == (30, 1)
    assert placed[0].data_ptr() != back.args[0].data_ptr()


@pytest.mark.parametrize(
    "view", [torch.arange(6)[None].expand(4, 6), torch.randn(0, 3)[:, :2], torch.randn(9)[::7]]
)
def test_any_view_is_kept_with_its_values(view):
    kept = on_host(view)
    assert torch.equal(kept, view)
    assert not view.numel() or kept.data_ptr() != view.data_ptr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name one model"),
        (["x", "--tiny", "llama"], "name one model"),
        (["--tiny", "llama", "--against", "cpu"], "cannot be its own reference"),
        (["--tiny", "llama", "--prompt", "Hi"], "no tokenizer"),
        (["--tiny", "llama", "--steps", "-1", "--against", "transformers"], "from 0 to 64"),
        (["/nowhere", "--against", "transformers"], "there is no model at /nowhere"),
        (["--tiny", "llama", "--against", "nobody"], "no adapter named nobody"),
    ],
)
def test_bad_input_is_one_sentence(words, said, capsys, fresh):
    assert main(["bisect", *words, "--adapter", "cpu"]) == 2
    assert said in capsys.readouterr().err
