"""Failures of one cause are one block; patterns choose items; old scripts go, others stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.errors import InputError
from vllm_adapter_conformance.judge.grouping import grouped, operator_of
from vllm_adapter_conformance.judge.messages import group_lines
from vllm_adapter_conformance.judge.outcome import FAIL, WAIVED, Result
from vllm_adapter_conformance.plan.choice import choose, level_of, matching, nearest
from vllm_adapter_conformance.run.reproduce import clean_up, write_all
from vllm_adapter_conformance.run.runner import RunRequest

pytestmark = pytest.mark.static

IDS = [
    "L0.package.files[adapter]",
    "L1.copy.round_trip[1 bytes]",
    "L1.copy.round_trip[4097 bytes]",
    "L2.rms_norm.correct[float16]",
    "L2.rms_norm.correct[float16-drawn-1]",
    "L2.rms_norm.correct[float16-drawn-10]",
    "L2.fused_add_rms_norm.correct[float16]",
    "L2.determinism[rms_norm-float16]",
]


def wrong(item: str, cause: str = "zeros", outcome: str = FAIL, share: float = 9.0) -> Result:
    op = item.split(".")[1].split("[")[0]
    return Result(
        item,
        outcome,
        1.0,
        share,
        expected=f"{op}: result 0 within its error budget",
        seen=f"{share} of the budget at [1, 2]",
        cause=cause,
    )


def raised(item: str, seen: str, expected: str = "the case to run without an error") -> Result:
    return Result(item, FAIL, 1.0, expected=expected, seen=seen)


def items(group):
    return [result.item for result in group.results]


def test_the_group_of_most_cases_comes_first():
    few = [wrong("L2.linear.correct[float32]", "NaN")]
    many = [wrong(f"L2.rms_norm.correct[float16-drawn-{n}]") for n in range(58)]
    groups = grouped([*few, *many])
    assert [len(group.results) for group in groups] == [58, 1]
    assert groups[0].first.item == "L2.rms_norm.correct[float16-drawn-0]"
    lines = group_lines(groups[0])
    assert lines[0].endswith(", and 57 more cases of the same cause")
    assert lines[-2] == (
        "  alike     L2.rms_norm.correct (58): float16-drawn-0, float16-drawn-1, "
        "float16-drawn-2, and 55 more"
    )
    assert lines[-1] == "  page      vllm-adapter explain L2.rms_norm.correct"


def test_another_operator_pattern_or_outcome_is_another_group():
    found = grouped(
        [
            wrong("L2.rms_norm.correct[a]"),
            wrong("L2.linear.correct[a]"),
            wrong("L2.rms_norm.correct[b]", "NaN"),
            wrong("L2.rms_norm.correct[c]", outcome=WAIVED),
            wrong("L2.rms_norm.correct[d]", share=1e9),
        ]
    )
    assert [items(group) for group in found] == [
        ["L2.rms_norm.correct[a]", "L2.rms_norm.correct[d]"],
        ["L2.linear.correct[a]"],
        ["L2.rms_norm.correct[b]"],
        ["L2.rms_norm.correct[c]"],
    ]


def test_one_exception_is_one_group_whatever_rule_met_it():
    error = "RuntimeError: launch of 4097 blocks failed"
    other = "RuntimeError: launch of 65 blocks failed"
    found = grouped(
        [
            raised("L2.rms_norm.correct[float16]", error, "rms_norm: a result"),
            raised("L2.determinism[rms_norm-float16]", f"{other} (/site/acme/kernels.py:12)"),
            raised("L2.leak[rms_norm-bfloat16]", f"{error} (/site/acme/kernels.py:12)"),
            raised("L2.leak[linear-bfloat16]", f"{error} (/site/acme/kernels.py:12)"),
            raised("L2.rms_norm.correct[float32]", "ValueError: no", "rms_norm: a result"),
        ]
    )
    assert [len(group.results) for group in found] == [3, 1, 1]


def test_sizes_and_dtypes_do_not_part_failures():
    found = grouped(
        raised(f"L1.copy.round_trip[{n} bytes]", f"byte {n - 1} of {n} differs", "equal bytes")
        for n in (4096, 4097, 1048579)
    )
    assert len(found) == 1 and found[0].others == 2


@pytest.mark.parametrize(
    ("item", "operator"),
    [
        ("L2.rms_norm.correct[float16]", "rms_norm"),
        ("L2.fused_add_rms_norm.correct[float16]", "fused_add_rms_norm"),
        ("L2.determinism[gelu_and_mul-float16]", "gelu_and_mul"),
        ("L2.leak[paged_attention-float16]", "paged_attention"),
        ("L1.copy.round_trip[4097 bytes]", "L1.copy.round_trip"),
    ],
)
def test_a_failure_has_an_operator_or_its_rule(item, operator):
    assert operator_of(raised(item, "x")) == operator


@given(st.lists(st.sampled_from(IDS), unique=True), st.lists(st.text(max_size=30), min_size=8))
def test_every_failure_is_in_one_group(chosen, said):
    failures = [raised(item, text) for item, text in zip(chosen, said, strict=False)]
    groups = grouped(failures)
    assert sorted(i for group in groups for i in items(group)) == sorted(chosen)
    sizes = [len(group.results) for group in groups]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("L2.rms_norm.correct[float16-drawn-1]", 1),
        ("L2.rms_norm.correct[*]", 3),
        ("L2.rms_norm.correct[float16-drawn-?]", 1),
        ("*rms_norm*", 5),
        ("rms_norm", 5),
        ("L1.", 2),
        ("[float16]", 2),
        ("L2.rms_norm.correct[float16-drawn-1", 2),
        ("*", 8),
        ("rms_norm*", 0),
    ],
)
def test_a_pattern_is_an_id_a_part_or_has_stars(pattern, count):
    assert len(matching(IDS, pattern)) == count


def test_several_patterns_are_joined_in_the_plan_s_order():
    assert choose(IDS, ["L2.determinism*", "1 bytes"], "L2") == [IDS[1], IDS[7]]


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("L2.rms_nrom.correct", "L2.rms_norm.correct"),
        ("rms_nrom", "rms_norm"),
        ("L2.rms_norm.correct[float61]", "L2.rms_norm.correct[float16]"),
    ],
)
def test_a_pattern_of_nothing_names_what_is_near(pattern, near):
    assert near in nearest(IDS, pattern)
    with pytest.raises(InputError) as refused:
        choose(IDS, ["rms_norm", pattern], "L2")
    assert repr(pattern) in refused.value.message and near in refused.value.hint


@given(st.sampled_from(IDS))
def test_an_id_means_itself_alone(id):
    assert choose(IDS, [id], "L2") == [id]


@given(st.text(max_size=20))
def test_any_pattern_ends_in_items_or_a_sentence(pattern):
    try:
        assert set(choose(IDS, [pattern], "L2")) <= set(IDS)
    except InputError as refused:
        assert refused.hint


def test_a_pattern_may_begin_with_its_level():
    assert level_of(["rms_norm", "L1.copy", "L3.llama*"]) == "L3"
    assert level_of(["rms_norm"]) is None and level_of([]) is None


def order(*cases: str, level: str = "L2") -> RunRequest:
    return RunRequest("acme", level, cases=cases)


def test_scripts_of_earlier_runs_go_and_what_is_the_user_s_stays(tmp_path):
    first, second, deep = (
        wrong(item)
        for item in ("L2.rms_norm.correct[a]", "L2.rms_norm.correct[b]", "L3.llama.logits[a]")
    )
    old = write_all(tmp_path, order(level="L3"), [first, second, deep])
    mine = tmp_path / "acme-notes.py"
    mine.write_text('"""Runs nothing."""\n')
    changed = old[second.item]
    changed.write_text(changed.read_text().replace("faulthandler.enable()", "breakpoint()"))
    other = write_all(tmp_path, RunRequest("acme2", "L2"), [first])
    removed = clean_up(tmp_path, order(), {"L2.linear.correct[a]"}, [])
    assert removed == [old[first.item]]
    assert sorted(tmp_path.iterdir()) == sorted([mine, changed, old[deep.item], *other.values()])


def test_a_run_of_chosen_items_removes_scripts_of_these_alone(tmp_path):
    first, second = wrong("L2.rms_norm.correct[a]"), wrong("L2.rms_norm.correct[b]")
    old = write_all(tmp_path, order(), [first, second])
    assert clean_up(tmp_path, order(first.item), {first.item}, []) == [old[first.item]]
    kept = write_all(tmp_path, order(), [second])
    assert clean_up(tmp_path, order(), {second.item}, kept.values()) == []
    assert clean_up(tmp_path / "none", order(), {second.item}, []) == []
