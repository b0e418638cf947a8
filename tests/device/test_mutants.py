"""The suite is itself tested: each mutant has one fault, and a named rule sees it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_dist import environment
from zoo import descriptor, failed, first_failure, run_rules, target_of

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.device_process.held import HeldDevice
from vllm_adapter_conformance.base.rule import NotDeclaredCase
from vllm_adapter_conformance.rules import registered

pytestmark = pytest.mark.device

K, A = "vllm_adapter_mutants.kernels:", "vllm_adapter_mutants.attention:"
M = "vllm_adapter_mutants.models:"
Q = "vllm_adapter_mutants.quantized:"
FLOAT32 = {"dtypes": ["float32"]}


def fewer_bits(run):
    return {"quantized_linear": {"run": Q + run}}, "L2.quantized_linear.correct", "budget"


def attention(run, plan=None, **entry):
    return {"paged_attention": {"run": A + run} | ({"plan": A + plan} if plan else {}) | entry}


ZOO = {
    # name: what its descriptor changes, the rule that fails, a word of the failure
    "epsilon": ({"rms_norm": {"run": f"{K}epsilon_ten_times"}}, "L2.rms_norm.correct", "budget"),
    "tail": ({"rms_norm": {"run": f"{K}tail_not_counted"}}, "L2.rms_norm.correct", "budget"),
    "result_dtype": (
        {"rms_norm": {"run": f"{K}result_in_float32"}},
        "L2.rms_norm.correct",
        "torch.float32",
    ),
    "refuses_declared": (
        {"rms_norm": {"run": f"{K}refuses_odd_widths"}},
        "L2.rms_norm.correct",
        "width must be even",
    ),
    "leak": ({"rms_norm": {"run": f"{K}keeps_results"}}, "L2.leak", "more live tensors"),
    "one_buffer": (
        {"rms_norm": {"run": f"{K}one_buffer"}},
        "L2.determinism",
        "memory",
    ),
    "strides": (
        {"rms_norm": {"run": f"{K}column_major_result"}},
        "L2.opcheck",
        "OpCheckError",
    ),
    "undeclared_dtype": (
        {"rms_norm": {"run": f"{K}halves_other_dtypes"} | FLOAT32},
        "L2.refusal.direct",
        "budget",
    ),
    "undeclared_elsewhere": (
        {"rms_norm": {"run": f"{K}other_dtypes_elsewhere"} | FLOAT32},
        "L2.refusal.direct",
        "meta",
    ),
    "writes_argument": (
        {"fused_add_rms_norm": {"run": f"{K}writes_residual"}},
        "L2.fused_add_rms_norm.correct",
        "changed",
    ),
    "noise": ({"silu_and_mul": {"run": f"{K}noise_within_budget"}}, "L2.determinism", "differs"),
    "graph_break": (
        {"silu_and_mul": {"run": f"{K}looks_at_values", "form": "torch"}},
        "L2.graph",
        "data-dependent",
    ),
    "adds_in_dtype": ({"linear": {"run": f"{K}adds_in_dtype"}}, "L2.linear.correct", "budget"),
    **{
        name: fewer_bits(name)
        for name in (
            *("bias_left_out", "halves_swapped", "zero_ignored", "one_scale"),
            *("last_group_of_rows", "one_row_scale", "other_flavour"),
        )
    },
    "bias": ({"linear": {"run": f"{K}bias_forgotten"}}, "L2.linear.correct", "budget"),
    "rotary_style": (
        {"rotary_embedding": {"run": f"{K}neighbours_rotated"}},
        "L2.rotary_embedding.correct",
        "budget",
    ),
    "copy_back": (
        {"rotary_embedding": {"run": f"{K}no_copy_back"}},
        "L2.rotary_embedding.correct",
        "budget",
    ),
    "swapped": (
        {"reshape_and_cache": {"run": f"{K}keys_and_values_swapped"}},
        "L2.reshape_and_cache.correct",
        "budget",
    ),
    "padding": (
        {"reshape_and_cache": {"run": f"{K}padding_to_slot_zero"}},
        "L2.reshape_and_cache.correct",
        "budget",
    ),
    "block_size": (
        {"reshape_and_cache": {"run": f"{K}blocks_of_sixteen"}},
        "L2.reshape_and_cache.correct",
        "budget",
    ),
    "last_key": (attention("last_key_dropped"), "L2.paged_attention.correct", "budget"),
    "not_causal": (attention("not_causal"), "L2.paged_attention.correct", "budget"),
    "gqa": (attention("heads_by_modulo"), "L2.paged_attention.correct", "budget"),
    "unused_slots": (attention("reads_unused_slots"), "L2.paged_attention.correct", "nan"),
    "neighbour": (attention("neighbour_block"), "L2.paged_attention.correct", "budget"),
    "stale": (attention("stale_blocks", "plan_stale_blocks"), "L2.kv_cache", "reuse"),
    "plan_once": ({"paged_attention": {"plan": f"{A}plan_once"}}, "L2.kv_cache", "budget"),
    "window": (
        attention("window_ignored", limits={"window": [0, 20]}),
        "L2.paged_attention.correct",
        "nan",
    ),
    "window_masked": (
        attention("reads_before_the_window", limits={"window": [0, 20]}),
        "L2.paged_attention.correct",
        "nan",
    ),
    "rope_base": (
        {"rotary_embedding": {"run": f"{M}rope_of_ten_thousand"}},
        "L3.qwen3.logits",
        "four times",
    ),
    "rope_scale": (
        {"rotary_embedding": {"run": f"{M}rope_scaled_twice"}},
        "L3.llama.logits",
        "four times",
    ),
    "scale": (
        {"paged_attention": {"run": f"{M}scale_of_sixty_four"}},
        "L3.llama.logits",
        "four times",
    ),
    "wrong_layer": (
        {"reshape_and_cache": {"run": f"{M}writes_to_the_layer_before"}},
        "L3.llama.logits",
        "four times",
    ),
    "model_window": (
        attention("window_ignored", limits={"window": [0, 20]}),
        "L3.qwen3.logits",
        "four times",
    ),
    "plan_kept": ({"paged_attention": {"plan": f"{A}plan_once"}}, "L3.llama.generate", "row"),
    "mask": ({"attention": {"run": f"{M}one_text"}}, "L3.bert.hidden", "four times"),
    "block": (
        {"silu_and_mul": {"run": f"{K}looks_at_values", "form": "torch"}},
        "L3.graph.block",
        "break",
    ),
    "empty": (dict.fromkeys(("linear", "paged_attention")), "L2.coverage.core", "none"),
}


@pytest.mark.parametrize("name", ZOO)
def test_a_mutant_is_failed_by_its_rule(name, tmp_path):
    change, rule, word = ZOO[name]
    target = target_of(f"mutant_{name}", descriptor(change), tmp_path)
    result = first_failure(target, rule)
    assert result is not None, f"{rule} passes the mutant"
    assert word in f"{result.expected} {result.seen}", result


@pytest.mark.parametrize("rule", sorted({rule for _, rule, _ in ZOO.values()}))
def test_a_rule_passes_the_healthy_one(rule, tmp_path):
    results = run_rules(target_of("healthy", descriptor({}), tmp_path), rule)[rule]
    assert results and not failed(results), failed(results)


def test_what_binds_beyond_the_certified_descriptor_is_seen(tmp_path):
    target = target_of("wider", descriptor({}), tmp_path)
    narrow = parse_capability(descriptor({"rms_norm": FLOAT32}), "narrow")
    result = first_failure(dataclasses.replace(target, capability=narrow), "L2.refusal.bind")
    assert result is not None and "rms_norm" in result.seen + result.expected
    assert "it is bound to wider" in result.seen


def test_an_error_that_leaves_the_device_dead_is_no_refusal(tmp_path, monkeypatch):
    even = {"run": f"{K}refuses_odd_widths", "limits": {"hidden": {"multiple_of": 2}}}
    target = target_of("frail", descriptor({"rms_norm": even}), tmp_path)

    def echo(device, tensor):
        raise RuntimeError("the device is gone")

    assert first_failure(target, "L2.refusal.direct") is None
    monkeypatch.setattr(HeldDevice, "do_echo", echo)
    result = first_failure(target, "L2.refusal.direct")
    assert result is not None and "the device to work after" in result.expected


def test_a_model_whose_operators_are_not_all_declared_is_not_run(tmp_path):
    changes = {"gelu": None, "paged_attention": {"limits": {"window": [0]}}}
    target = target_of("partial", descriptor(changes), tmp_path)

    def absent(rule):
        found = registered()[rule].cases(target)
        return {case.id: case.pointer for case in found if isinstance(case, NotDeclaredCase)}

    dtypes = ("float32", "float16", "bfloat16")
    assert absent("L3.bert.hidden") == dict.fromkeys(dtypes, "/operators/gelu")
    windows = [f"{dtype}-window" for dtype in dtypes]
    pointer = "/operators/paged_attention/limits/window"
    assert absent("L3.qwen3.logits") == dict.fromkeys(windows, pointer)
    assert absent("L3.graph.block") == {}
    # Tokens are compared in the first dtype that is declared.
    assert absent("L3.qwen3.generate") == dict.fromkeys(dtypes[1:], "/operators")
    narrow = descriptor({op: {"dtypes": ["bfloat16"]} for op in descriptor({})["operators"]})
    target = target_of("narrow", narrow, tmp_path)
    assert set(absent("L3.llama.generate")) == {"float32", "float16"}
    assert absent("L3.graph.block") == {}


CLI = "import sys; from vllm_adapter.cli.main import main; sys.exit(main())"
THIEF = """
import sys, torch
from pathlib import Path
library = torch.library.Library("vllm_adapter", "FRAGMENT")
library.define("rms_norm.thief(Tensor x, Tensor weight, float eps) -> Tensor")
library.impl("rms_norm.thief", lambda x, weight, eps: x + 1, "CPU")
torch.library.register_fake("vllm_adapter::rms_norm.thief", lambda x, w, e: x.new_empty(x.shape))
sys.path.insert(0, sys.argv[1])
from zoo import descriptor, first_failure, target_of
print(first_failure(target_of("robbed", descriptor({}), Path(sys.argv[2])), "L2.packet.default"))
"""


def test_an_overload_that_was_defined_before_the_default_is_seen(tmp_path):
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", THIEF, tests, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "L2.packet.default[linear]" in done.stdout, done.stderr  # the device is not opened
    assert "outcome='fail'" in done.stdout
    assert "vllm_adapter::rms_norm.thief was defined by <string>:4" in done.stdout
    assert "vllm_adapter::rms_norm.thief was given a kernel for CPU by <string>:4" in done.stdout


@pytest.mark.slow
def test_certify_fails_an_installed_mutant_and_outlives_its_kernel(site, tmp_path):
    package = site.add("mutants")
    raw = descriptor(
        {
            "rms_norm": {"run": f"{K}epsilon_ten_times"},
            "silu_and_mul": {"run": f"{K}dies_of_other_dtypes"},
        }
    )
    for entry in raw["operators"].values():
        entry.update(FLOAT32)
    (package / "capabilities/any.json").write_text(json.dumps(raw), encoding="utf-8")
    file = tmp_path / "mutants.json"
    words = ("certify", "mutants", "--level", "L2", "--budget", "2", "--output", str(file))
    done = subprocess.run(
        [sys.executable, "-c", CLI, *words],
        env=environment(site.path),
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 1, done.stderr
    certificate = json.loads(file.read_text(encoding="utf-8"))
    bad = {
        f"{rule['rule']}[{case['case']}]": case
        for rule in certificate["rules"]
        for case in rule["cases"]
        if case["outcome"] == "fail"
    }
    assert "L2.rms_norm.correct[float32]" in bad
    assert "killed by SIGABRT" in bad["L2.refusal.direct[silu_and_mul-0]"]["message"]
    assert certificate["level_reached"] is None
    assert not any("paged_attention" in id for id in bad)
