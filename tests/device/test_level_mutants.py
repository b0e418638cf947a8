"""Claims that are not earned, each refused: by a rule, or by the level's own core."""

from __future__ import annotations

import dataclasses

import pytest
from zoo import descriptor, failed, run_rules, target_of

from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase
from vllm_adapter_conformance.base.target import BUDGET_S
from vllm_adapter_conformance.certificate import mustpass
from vllm_adapter_conformance.certificate.requirements import sentences, shortfall
from vllm_adapter_conformance.ops.space import drawn
from vllm_adapter_conformance.plan.suite import make_plan
from vllm_adapter_conformance.rules import registered

pytestmark = pytest.mark.device

P = "vllm_adapter_mutants.paths:"
LOOSE = {"deterministic": False}
DECODER = (
    *("linear", "rms_norm", "fused_add_rms_norm", "silu_and_mul"),
    *("rotary_embedding", "reshape_and_cache", "paged_attention"),
)
ENCODER = ("linear", "layer_norm", "gelu", "embedding", "attention")


def with_kernel(name, tmp_path, **sections):
    raw = descriptor({"rms_norm": {"run": P + name}}, **sections)
    return target_of(f"path_{name}_{len(sections)}", raw, tmp_path)


def only(tmp_path, name, *operators, **entry):
    """A target that declares these operators alone, each entry with these keys."""
    gone = {op: None for op in OPERATORS if op not in operators}
    kept = {op: dict(entry) for op in operators}
    return packaged(name, descriptor(gone | kept), tmp_path)


def packaged(name, raw, tmp_path):
    """A target whose package has the descriptor where its manifest looks for it."""
    folder = tmp_path / "capabilities"
    folder.mkdir(exist_ok=True)
    target = target_of(name, raw, tmp_path)
    (folder / f"{name}.json").write_text((tmp_path / f"{name}.json").read_text())
    return dataclasses.replace(target, budget=0.05)


def lacks(target, level):
    plan = make_plan(target, level, registered())
    found = shortfall(target, plan, level, mustpass.committed())
    return None if found is None else " | ".join(sentences(found))


def test_a_kernel_that_sleeps_is_refused(tmp_path):
    target = with_kernel("sleeps", tmp_path)
    results = run_rules(target, "L2.path.latency")["L2.path.latency"]
    assert {result.item.partition("[")[2].partition("-")[0] for result in failed(results)} == {
        "rms_norm"
    }
    assert "a small call within" in failed(results)[0].expected


def test_not_deterministic_allows_rounding(tmp_path):
    target = with_kernel("rounds_in_another_order", tmp_path, numerics=LOOSE)
    results = run_rules(target, "L2.many_calls")["L2.many_calls"]
    assert results and failed(results) == []
    assert all(
        isinstance(case, NotDeclaredCase) for case in registered()["L2.determinism"].cases(target)
    )


def test_and_not_what_is_wrong(tmp_path):
    target = with_kernel("wrong_now_and_then", tmp_path, numerics=LOOSE)
    wrong = failed(run_rules(target, "L2.many_calls")["L2.many_calls"])
    assert wrong


@pytest.mark.parametrize(
    ("operators", "highest", "words"),
    [
        (("linear", "paged_attention"), "L1", "rms_norm (/operators/rms_norm: no entry)"),
        (("linear", "attention"), "L1", "layer_norm (/operators/layer_norm: no entry)"),
        ((), "L1", "L2 needs a decoder's layer in one dtype (linear, rms_norm"),
        (DECODER, "L3", None),
        (ENCODER, "L3", None),
    ],
)
def test_what_a_level_needs_is_said_before_anything_runs(tmp_path, operators, highest, words):
    said = lacks(only(tmp_path, "short", *operators), "L3")
    if words is None:
        assert said is None
    else:
        assert words in said
        assert f"{highest} is the highest that this adapter can reach" in said


def test_an_encoder_has_no_rules_of_vllm_yet_and_is_told_so(tmp_path):
    said = lacks(only(tmp_path, "encoder", *ENCODER), "L4")
    assert "L4 needs a decoder in vLLM" in said and "L3 is the highest" in said


def test_operators_that_share_no_dtype_are_no_layer(tmp_path):
    split = {op: {"dtypes": ["float16"]} for op in DECODER} | {"linear": {"dtypes": ["bfloat16"]}}
    gone = {op: None for op in OPERATORS if op not in DECODER}
    target = packaged("split", descriptor(gone | split), tmp_path)
    assert "L1 is the highest" in lacks(target, "L2")
    (result,) = run_rules(target, "L2.coverage.core")["L2.coverage.core"]
    assert result.outcome == "fail" and "decoder in float16" in result.detail


def test_an_encoder_s_layer_is_a_core(tmp_path):
    target = only(tmp_path, "encoder_core", *ENCODER, dtypes=["bfloat16"])
    (result,) = run_rules(target, "L2.coverage.core")["L2.coverage.core"]
    assert result.outcome == "pass" and result.note == "encoder in bfloat16"


# Declared subsets

SUBSETS = {
    "float16 only": {op: {"dtypes": ["float16"]} for op in DECODER},
    "head 128 only": {
        op: {"limits": {"head_size": [128]}}
        for op in ("rotary_embedding", "reshape_and_cache", "paged_attention")
    },
    "one block size": {
        op: {"limits": {"block_size": [32]}} for op in ("reshape_and_cache", "paged_attention")
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return target_of("whole", descriptor({}), tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("name", SUBSETS)
def test_a_declared_subset_is_drawn_from_as_deeply(tmp_path, whole, name):
    """As many draws of each operator in all, or the whole space; and every level has its core."""
    part = packaged("part", descriptor(SUBSETS[name]), tmp_path)
    for op in SUBSETS[name]:
        all_draws = drawn(whole.capability, op, 1, BUDGET_S)
        mine = drawn(part.capability, op, 1, BUDGET_S)
        assert len(mine.draws) >= 0.6 * len(all_draws.draws), (op, len(mine.draws))
        met, pairs = mine.pairs  # the rest is too large for the budget, or refused
        assert met >= 0.85 * pairs, (op, mine.pairs)
    assert lacks(part, "L3") is None


def test_tokens_are_generated_in_the_first_dtype_that_is_declared(tmp_path):
    target = only(tmp_path, "low", *DECODER, dtypes=["float16", "bfloat16"])
    cases = list(registered()["L3.llama.generate"].cases(target))
    assert [case.id for case in cases] == list(DTYPES)
    assert [isinstance(case, Case) for case in cases] == [False, True, False]


@pytest.mark.slow
def test_and_are_judged_there(tmp_path):
    target = only(tmp_path, "low_run", *DECODER, dtypes=["float16"])
    (result,) = run_rules(target, "L3.llama.generate")["L3.llama.generate"]
    assert result.outcome == "pass", result.message
