"""What a descriptor entry says of a case."""

from __future__ import annotations

import sys
import types

import pytest

from vllm_adapter.contract.decision import (
    UNCONCERNED,
    Accept,
    OperatorEntry,
    Reject,
    decide,
    headline,
    holds,
)
from vllm_adapter.contract.operators import OPERATORS
from vllm_adapter.errors import AdapterError

pytestmark = pytest.mark.static

ATTENTION = OPERATORS["paged_attention"]
CASE = {
    "dtype": "float16",
    "head_size": 64,
    "block_size": 16,
    "gqa_ratio": 1,
    "window": 0,
    "soft_cap": 0.0,
    "kv_dtype": "auto",
}


def entry(support="full", **rest):
    return OperatorEntry(
        support, "/operators/paged_attention/0", **{"dtypes": ("float16",)} | rest
    )


@pytest.mark.parametrize(
    ("rule", "got", "kept"),
    [
        ((64, 128), 64, True),
        ((64, 128), 96, False),
        ((1,), True, False),
        ((True,), 1, False),
        ((False,), False, True),
        ((0.0,), 0, True),
        (("decode",), "prefill", False),
        ({"min": 32, "max": 256, "multiple_of": 16}, 256, True),
        ({"min": 32}, 31, False),
        ({"max": 256}, 257, False),
        ({"multiple_of": 16}, 40, False),
        ({"min": 0}, "auto", False),
        ({"min": 0}, True, False),
        ({}, "auto", True),
        ({}, 7, True),
    ],
)
def test_a_rule_holds_or_not(rule, got, kept):
    assert holds(rule, got) is kept


def test_an_unnamed_size_fact_declares_any_value():
    assert isinstance(decide(ATTENTION, entry(), CASE | {"head_size": 7}), Accept)


@pytest.mark.parametrize(
    ("fact", "value"), [("window", 20), ("soft_cap", 30.0), ("kv_dtype", "float8_e4m3fn")]
)
def test_an_unnamed_feature_fact_declares_only_off(fact, value):
    got = decide(ATTENTION, entry(), CASE | {fact: value})
    assert isinstance(got, Reject)
    assert got.pointer == f"/operators/paged_attention/0/limits/{fact}"
    assert (got.got, got.need) == (value, [ATTENTION.facts[fact].off])
    named = entry(limits={fact: (ATTENTION.facts[fact].off, value)})
    assert isinstance(decide(ATTENTION, named, CASE | {fact: value}), Accept)


def test_every_feature_fact_is_off_by_default():
    for operator in OPERATORS.values():
        for name, fact in operator.facts.items():
            assert fact.off is None or fact.samples[0] == fact.off, (operator.name, name)


def test_a_dtype_that_is_not_declared_is_named():
    got = decide(ATTENTION, entry(), CASE | {"dtype": "bfloat16"})
    assert got == Reject(
        "dtype not declared", "/operators/paged_attention/0/dtypes", "bfloat16", ["float16"]
    )


def test_step_facts_end_in_when():
    assert decide(ATTENTION, entry(), CASE) == Accept(
        "/operators/paged_attention/0", {"phase": ("decode", "prefill", "mixed")}
    )
    decode = entry(limits={"phase": ("decode",)})
    assert decide(ATTENTION, decode, CASE).when == {"phase": ("decode",)}
    assert decide(ATTENTION, decode, CASE | {"phase": "decode"}).when == {}
    refused = decide(ATTENTION, decode, CASE | {"phase": "mixed"})
    assert (refused.got, refused.need) == ("mixed", ["decode"])


@pytest.mark.parametrize("support", ["not_implemented", "unsupported", "unknown"])
def test_an_entry_that_declares_nothing_gives_the_reason(support):
    named = entry(support, dtypes=(), limits={"window": {"min": 1}})
    got = decide(ATTENTION, named, CASE | {"window": 20})
    assert got.reason == f"paged_attention with window = 20 is declared {support}"
    assert got.pointer == "/operators/paged_attention/0/support"
    assert decide(ATTENTION, named, CASE).reason == UNCONCERNED
    whole = decide(ATTENTION, entry(support, dtypes=()), CASE)
    assert whole.reason == f"paged_attention is declared {support}"


def test_a_step_fact_is_named_by_its_rule_where_no_step_is_known():
    named = entry("unsupported", dtypes=(), limits={"phase": ("mixed",)})
    assert "with phase in ['mixed'] is declared" in decide(ATTENTION, named, CASE).reason


def test_an_entry_of_another_dtype_is_not_concerned():
    other = entry("unsupported", dtypes=("float32",))
    assert decide(ATTENTION, other, CASE).reason == UNCONCERNED


def test_the_headline_is_the_support_word_that_names_the_case():
    entries = [
        entry(limits={"head_size": {"max": 32}}),
        entry("unsupported", dtypes=("float32",)),
        entry("not_implemented", dtypes=(), limits={"head_size": {"min": 33}}),
    ]
    decisions = [decide(ATTENTION, one, CASE) for one in entries]
    assert [type(d) for d in decisions] == [Reject] * 3
    assert headline(decisions) is decisions[2]
    assert headline(decisions[:2]) is decisions[0]
    assert headline(decisions[1:2]) is decisions[1]
    assert headline([Accept("/x")]) is None
    assert headline([]) is None


def test_a_refusal_reads_as_a_sentence():
    text = str(decide(ATTENTION, entry(limits={"head_size": {"max": 32}}), CASE))
    assert text.startswith("head_size outside its limits (/operators/paged_attention/0/limits/")
    assert text.endswith("got 64, need {'max': 32})")


def test_supports_refuses_with_its_own_sentence(monkeypatch):
    def supports(facts):
        if facts["hidden"] == 65 and facts["dtype"] == "float32":
            return "no odd rows in float32"
        return None

    module = types.SimpleNamespace(rms_norm=supports)
    monkeypatch.setitem(sys.modules, "acme_limits", module)
    entry = OperatorEntry(
        "full", "/operators/rms_norm", ("float32",), run="m:f", supports="acme_limits:rms_norm"
    )
    decided = decide(OPERATORS["rms_norm"], entry, {"dtype": "float32", "hidden": 65})
    assert isinstance(decided, Reject)
    assert decided.reason == "no odd rows in float32"
    assert decided.pointer == "/operators/rms_norm/supports"
    accepted = decide(OPERATORS["rms_norm"], entry, {"dtype": "float32", "hidden": 64})
    assert isinstance(accepted, Accept)


def test_a_supports_that_fails_names_the_entry():
    entry = OperatorEntry(
        "full", "/operators/rms_norm", ("float32",), run="m:f", supports="json:no_such_name"
    )
    with pytest.raises(AdapterError, match=r"json:no_such_name.*/operators/rms_norm/supports"):
        decide(OPERATORS["rms_norm"], entry, {"dtype": "float32", "hidden": 64})
