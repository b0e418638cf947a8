"""Covering arrays, and the spaces that are made of descriptors, without torch."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.target import BUDGET_S
from vllm_adapter_conformance.ops import space
from vllm_adapter_conformance.ops.covering import Covering
from vllm_adapter_conformance.ops.dimensions import SAMPLED, TRIPLES
from vllm_adapter_conformance.ops.effects import DECIDING, effects
from vllm_adapter_conformance.ops.lengths import packed_lengths, paged_lengths
from vllm_adapter_conformance.ops.members import ANY, fact_dimension, sampled

pytestmark = pytest.mark.static

FULL = {"support": "full", "dtypes": ["float32"], "run": "acme:kernel"}
WHOLE = FULL | {"dtypes": list(DTYPES)}
names = st.sampled_from("abcdef")
dimensions = st.dictionaries(
    names,
    st.dictionaries(
        st.sampled_from("xyz"), st.lists(st.integers(0, 99), min_size=1, unique=True), min_size=1
    ),
    min_size=1,
)


def capability(**operators):
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1"},
        "operators": operators,
    }
    return parse_capability(raw, "acme.json")


RAW = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Acme", "arch": "a1"},
    "operators": {"paged_attention": WHOLE},
}


def rows_of(covering, count):
    return list(itertools.islice(covering.rows(), count))


@settings(max_examples=50, deadline=None)
@given(dimensions, st.integers(0, 9))
def test_every_pair_of_classes_and_every_member_is_met(given, seed):
    covering = Covering(given, lambda row: True, random.Random(seed))
    rows = rows_of(covering, 400)
    met, asked = covering.pairs
    assert met == asked and not covering.unseen
    for one, other in itertools.combinations(given, 2):
        seen = {(row[one], row[other]) for row in rows}
        for a, b in itertools.product(given[one].values(), given[other].values()):
            assert any((x, y) in seen for x in a for y in b)
    assert all(row.keys() == given.keys() for row in rows)


@given(st.integers(0, 9))
def test_the_seed_fixes_the_rows(seed):
    made = [
        Covering(SAMPLED["attention"], lambda row: True, random.Random(s)) for s in (seed,) * 2
    ]
    one, other = (rows_of(covering, 30) for covering in made)
    assert one == other
    third = Covering(SAMPLED["attention"], lambda row: True, random.Random(seed + 1))
    assert rows_of(third, 30) != one


def test_the_triples_that_are_asked_for_meet():
    given = {name: {kind: (f"{name}{kind}",) for kind in "wxyz"} for name in "abcdef"}
    asked = {"a": ("w", "x"), "b": ("w", "x", "y"), "c": ("z", "none"), "g": ("w",)}
    triple = {name: asked[name] for name in "abc"}
    covering = Covering(given, lambda row: True, random.Random(1), [triple, asked])
    rows = rows_of(covering, 60)
    assert covering.met_triples == (6, 6) and not covering.unmet
    met = {(row["a"], row["b"], row["c"]) for row in rows}
    for a, b in itertools.product(("aw", "ax"), ("bw", "bx", "by")):
        assert (a, b, "cz") in met


def test_a_triple_that_no_row_may_have_is_told():
    given = {name: {kind: (kind,) for kind in "xy"} for name in "abc"}
    triple = dict.fromkeys("abc", ("x", "y"))
    covering = Covering(given, lambda row: {*row.values()} != {"x"}, random.Random(0), [triple])
    rows_of(covering, 40)
    assert covering.met_triples == (7, 8)
    assert covering.unmet == [frozenset({("a", "x"), ("b", "x"), ("c", "x")})]


def test_of_rows_that_close_as_much_the_cheap_one_is_taken():
    given = {"a": {"x": (1,), "y": (2,)}, "b": {"x": (1, 100), "y": (2, 200)}}
    covering = Covering(
        given, lambda row: True, random.Random(0), cost=lambda row: float(row["b"])
    )
    assert rows_of(covering, 4)[0]["b"] < 100


def test_what_can_take_effect_in_no_row_is_not_asked_for():
    """Of an empty batch no length is one: the pair is neither met nor missing."""
    given = {
        "batch": {"none": (0,), "some": (1, 2)},
        "length": {"short": (3,), "long": (400,)},
        "layout": {"plain": ("plain",), "strided": ("strided",)},
    }
    triple = {"batch": ("none", "some"), "length": ("long",), "layout": ("plain", "strided")}

    def live(row):
        return {"batch"} if not row["batch"] else None

    made = Covering(
        given,
        lambda row: True,
        random.Random(0),
        [triple],
        effects=live,
        deciding=("batch", "phase"),
    )
    rows_of(made, 40)
    assert made.pairs == (8, 8)  # of 12: the empty batch meets nothing
    assert made.met_triples == (2, 2) and not made.unmet and not made.unseen


@pytest.mark.parametrize("op", OPERATORS)
def test_what_decides_is_all_that_effects_ask_for(op):
    """Rows that agree in what decides have the same effects."""
    spaces, kinds = sampled(op, random.Random(0)), random.Random(1)
    spaces |= {name: {"any": (1, 2)} for name in OPERATORS[op].bind_facts}
    by_decision = {}
    for _ in range(3000):
        members = {n: [m for kind in one.values() for m in kind] for n, one in spaces.items()}
        row = {name: kinds.choice(found) for name, found in members.items()}
        key = tuple(row[name] for name in DECIDING if name in row)
        assert by_decision.setdefault(key, effects(op, row)) == effects(op, row)


def test_what_no_row_may_have_is_left_over():
    given = {"a": {"x": (1,), "y": (2,)}, "b": {"x": (1,), "y": (2,)}}
    covering = Covering(given, lambda row: row["a"] == 1, random.Random(0))
    assert all(row["a"] == 1 for row in rows_of(covering, 20))
    assert covering.pairs == (2, 4) and covering.unseen == [("a", 2)]
    nothing = Covering(given, lambda row: False, random.Random(0))
    assert rows_of(nothing, 5) == []


@pytest.mark.parametrize(
    ("limit", "has", "lacks"),
    [
        ({"min": 32, "max": 256, "multiple_of": 2}, {32, 34, 64, 256, 254, 160}, {1, 16, 33, 257}),
        ({"multiple_of": 24}, {24, 48, 72, 120}, {64, 128}),
        ([64, 112], {64, 112}, {128, 96}),
        ({}, {1, 33, 64, 160, 256, 512}, set()),
    ],
)
def test_the_values_of_a_fact_are_what_its_limits_admit(limit, has, lacks):
    entry = FULL | ({"limits": {"head_size": limit}} if limit else {})
    cap = capability(reshape_and_cache=entry)
    operator = OPERATORS["reshape_and_cache"]
    entries = cap.operators["reshape_and_cache"]
    found, other = (
        fact_dimension(entries, operator, "head_size", random.Random(seed)) for seed in (0, 1)
    )
    values = set(itertools.chain.from_iterable(found.values()))
    assert has <= values and not lacks & values
    if isinstance(limit, dict):
        step, most = limit.get("multiple_of", 1), limit.get("max", 512)
        assert found[ANY] != other[ANY]
        assert all(v % step == 0 and limit.get("min", 1) <= v <= most for v in found[ANY])
    else:
        assert ANY not in found


@pytest.mark.parametrize("op", OPERATORS)
def test_numbers_that_nobody_named_are_drawn_in_each_run(op):
    one, again, other = (sampled(op, random.Random(seed)) for seed in (0, 0, 1))
    assert one == again and one.keys() == SAMPLED[op].keys() and one != other
    for name, classes in one.items():
        for size in classes.get(ANY, ()):
            kinds = itertools.chain.from_iterable(SAMPLED[op][name].values())
            most = max(k for k in kinds if isinstance(k, int)) if name != "rows" else 600
            assert 0 < (size[0] if name == "rows" else size) <= most


@pytest.mark.parametrize("op", TRIPLES)
def test_triples_are_of_classes_that_there_are(op):
    for triple in TRIPLES[op]:
        assert len(triple) == 3
        for name, kinds in triple.items():
            known = sampled(op, random.Random(0)).get(name)
            if name == "dtype":
                known = dict.fromkeys(DTYPES)
            elif known is None and name != "phase":
                cap = capability(**{op: FULL | {"limits": everything(op)}})
                known = fact_dimension(cap.operators[op], OPERATORS[op], name, random.Random(0))
            assert known is None or set(kinds) <= known.keys(), (name, kinds)


def everything(op):
    facts = OPERATORS[op].facts
    limits = {name: list(fact.samples) for name, fact in facts.items() if fact.off is not None}
    return limits | {name: {"min": 0} for name in ("window", "soft_cap") if name in facts}


def test_a_feature_that_is_not_declared_is_off():
    cap = capability(paged_attention=FULL)
    operator = OPERATORS["paged_attention"]
    for name in ("window", "soft_cap", "kv_dtype"):
        entries = cap.operators["paged_attention"]
        (values,) = fact_dimension(entries, operator, name, random.Random(0)).values()
        assert values == (operator.facts[name].off,)


@pytest.mark.parametrize("op", OPERATORS)
def test_draws_are_of_declared_cases_alone(op):
    limits = {"hidden": {"max": 700}} if "hidden" in OPERATORS[op].facts else {}
    cap = capability(**{op: WHOLE | {"limits": limits}})
    found = space.drawn(cap, op, 3, 3.0)
    assert found is not None and len(found.draws) > 5
    for point in found.draws:
        assert point.choice.keys() == SAMPLED[op].keys()
        between = point.choice["history"] in ("in turn", "other facts")
        assert between or not point.between
        for called in (point, *point.between):
            assert space.refusal(cap, op, called.facts) is None
            assert called.choice.keys() == SAMPLED[op].keys()
        if point.choice["history"] == "in turn":
            assert all(other.facts == point.facts for other in point.between)
        else:
            assert all(other.facts != point.facts for other in point.between)
    assert space.drawn(capability(), op, 3, 3.0) is None


def test_a_larger_budget_draws_more_and_leaves_less():
    cap = capability(linear=WHOLE)
    small, large = (space.drawn(cap, "linear", 1, budget) for budget in (2.0, 90.0))
    assert len(small.draws) < len(large.draws)
    assert len(small.not_visited) > 1
    assert large.not_visited == ("offset=2147483648",)
    assert small.pairs[0] < large.pairs[0]


def test_other_seeds_draw_other_cases():
    cap = capability(rms_norm=WHOLE)
    one, again, other = (space.drawn(cap, "rms_norm", seed, 2.0) for seed in (1, 1, 2))
    assert one == again and one.draws != other.draws


def test_between_two_calls_of_other_facts_one_fact_has_changed():
    cap = capability(rms_norm=WHOLE)
    found = space.drawn(cap, "rms_norm", 1, 30.0).draws
    pairs = [(point, other) for point in found for other in point.between]
    changed = [
        {name for name in other.facts if other.facts[name] != point.facts[name]}
        for point, other in pairs
        if point.choice["history"] == "other facts"
    ]
    assert changed and all(len(names) == 1 for names in changed)
    near = [
        other.facts["hidden"] < point.facts["hidden"] <= other.facts["hidden"] + 16
        for point, other in pairs
    ]
    assert any(near), "scratch for one width is not found by the next smaller one"


def test_other_processes_draw_the_same():
    script = (
        "from vllm_adapter.contract.capability import parse_capability\n"
        "from vllm_adapter_conformance.ops.space import drawn\n"
        f"raw = {RAW!r}\n"
        "cap = parse_capability(raw, 'acme.json')\n"
        "print([p.to_json() for p in drawn(cap, 'paged_attention', 5, 2.0).draws])"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1


def test_cases_are_of_one_dtype_and_small():
    cap = capability(rms_norm=WHOLE)
    cases = list(space.drawn_cases(cap, "rms_norm", 0, 2.0))
    assert {case.id.partition("-")[0] for case in cases} == set(DTYPES)
    for case in cases:
        assert len(case.params["draws"]) <= space.GROUP
        dtype = case.id.partition("-")[0]
        assert {draw["facts"]["dtype"] for draw in case.params["draws"]} == {dtype}
        assert case.pointer == "/operators/rms_norm"


@given(
    st.sampled_from(("decode", "prefill", "mixed")),
    st.sampled_from((0, 1, 2, 17)),
    st.sampled_from(("one", "block", "block and one", "short", 513)),
    st.sampled_from((2, 65, 257)),
    st.sampled_from((1, 16, 24)),
    st.integers(0, 99),
)
def test_lengths_are_possible(phase, batch, context, queries, block, seed):
    choice = {"phase": phase, "batch": batch, "context": context, "queries": queries}
    new, contexts = paged_lengths(choice, block, seed)
    assert len(new) == len(contexts) == batch
    assert all(0 <= q <= c for q, c in zip(new, contexts, strict=True))
    if phase == "decode":
        assert set(new) <= {1}
    if phase == "prefill":
        assert new == contexts
    assert len(packed_lengths(choice, seed)) == batch


def test_drawing_imports_no_torch():
    script = "import sys\nimport vllm_adapter_conformance.ops.space\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("seed", range(4))
def test_what_an_empty_batch_has_was_not_visited(seed):
    """The cheapest row that has a length would be one in which nothing has any length."""
    cap = capability(attention=FULL | {"limits": everything("attention")})
    found = space.drawn(cap, "attention", seed, BUDGET_S)
    lengths = {p.choice["queries"] for p in found.draws if p.choice["batch"]}
    missing = {int(one.partition("=")[2]) for one in found.not_visited if "queries=" in one[:8]}
    assert lengths | missing >= {
        n for kind in SAMPLED["attention"]["queries"].values() for n in kind
    }


@pytest.mark.parametrize(
    ("choice", "without"),
    [
        ({"phase": "decode", "context": 513, "queries": 5}, {"queries"}),
        ({"phase": "prefill", "context": 513, "queries": 5}, {"queries"}),
        ({"phase": "prefill", "context": 4097, "queries": 5}, {"queries", "context"}),
        ({"phase": "mixed", "context": 64, "queries": 65}, {"context"}),
        ({"phase": "mixed", "context": 65, "queries": 65}, set()),
    ],
)
def test_lengths_that_a_phase_does_not_have_are_not_visited(choice, without):
    row = {"batch": 3, **choice}
    assert effects("paged_attention", row) == row.keys() - without
