"""Mutants that are right for fixed samples: each dimension of the drawn cases finds its own."""

from __future__ import annotations

import dataclasses

import pytest
from zoo import alone, descriptor, first_failure, target_of

from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import Case
from vllm_adapter_conformance.plan.suite import SuiteItem
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.execution import run_item

pytestmark = pytest.mark.device

B = "vllm_adapter_mutants.beyond:"
WHOLE = {"window": {"min": 0}, "soft_cap": {"min": 0}}
SEEDS = (0,)

MUTANTS = {
    "rms_norm": [
        "rows_of_four_thousand",
        "rows_of_a_grid",
        "usual_epsilon",
        "packed_weight",
        "kept_by_address",
        "kept_by_shape",
        "one_scratch",
    ],
    "silu_and_mul": ["exp_overflows", "cleans_up"],
    "linear": ["wide_products", "transposed_weight", "columns_without_a_gap"],
    "embedding": ["short_ids", "neighbours_are_a_view"],
    "rotary_embedding": ["short_positions", "counting_by_its_ends"],
    "reshape_and_cache": ["minus_one_alone", "short_blocks"],
    "paged_attention": [
        "own_scale",
        "packed_table",
        "short_block_numbers",
        "contexts_of_five_hundred",
        "batches_of_sixteen",
        "queries_of_a_tile",
        "ratio_by_shift",
        "window_or_cap",
        "floor_of_scores",
        "table_to_the_end",
    ],
}
PAIRS = [(op, name) for op, names in MUTANTS.items() for name in names]


def entry(op, run):
    found = {"run": f"{B}{run}" if run else f"vllm_adapter.engine.ops.generic:{op}"}
    return {op: found | ({"limits": WHOLE} if op == "paged_attention" else {})}


def first_of_the_drawn(target, op):
    """The first drawn case that does not pass."""
    rule = registered()[f"L2.{op}.correct"]
    with alone():
        bench = Bench(target)
        for case in rule.cases(target):
            if isinstance(case, Case) and "draws" in case.params:
                result = run_item(bench, SuiteItem(rule, case))
                if result.outcome != "pass":
                    return result
    return None


@pytest.mark.parametrize(("op", "name"), PAIRS, ids=[name for _, name in PAIRS])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mutant_of_the_unusual_is_found_by_every_seed(op, name, seed, tmp_path):
    target = target_of(f"beyond_{name}_{seed}", descriptor(entry(op, name)), tmp_path)
    found = first_of_the_drawn(dataclasses.replace(target, seed=seed), op)
    assert found is not None, f"L2.{op}.correct passes it"
    assert "drawn" in found.item


@pytest.mark.parametrize("op", MUTANTS)
def test_what_is_right_passes_every_draw(op, tmp_path):
    target = target_of(f"right_{op}", descriptor(entry(op, None)), tmp_path)
    assert first_of_the_drawn(dataclasses.replace(target, seed=5), op) is None


def test_a_rare_other_bit_is_seen(tmp_path):
    change = {"rms_norm": {"run": f"{B}wrong_once_in_a_hundred"}}
    result = first_failure(target_of("rare", descriptor(change), tmp_path), "L2.determinism")
    assert result is not None and "differs from run 0" in result.seen


@pytest.mark.parametrize("name", ["keeps_a_word", "keeps_a_struct"])
def test_a_small_leak_is_a_slope(name, tmp_path):
    change = {"rms_norm": {"run": f"{B}{name}"}}
    result = first_failure(target_of(name, descriptor(change), tmp_path), "L2.leak")
    assert result is not None and "in each of 3 windows" in result.seen
