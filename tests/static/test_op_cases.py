"""Operator cases made of a descriptor, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.contract.decision import Reject
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter_conformance.base.rule import Case, NotDeclaredCase
from vllm_adapter_conformance.models.decoder_shape import DecoderShape, decoder_shape
from vllm_adapter_conformance.ops.cases import (
    base_cases,
    direct_case,
    operator_cases,
    undeclared,
    values,
    variations,
)

pytestmark = pytest.mark.static

FULL = {"support": "full", "dtypes": ["float32"], "run": "acme:kernel"}


def capability(**operators):
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1"},
        "operators": operators,
    }
    return parse_capability(raw, "acme.json")


def collected(cap, op):
    cases = list(operator_cases(cap, op))
    run = [case.id for case in cases if isinstance(case, Case)]
    return run, {c.id: c.pointer for c in cases if isinstance(c, NotDeclaredCase)}


def test_one_fact_is_varied_at_a_time_over_all_its_samples():
    cases = variations(capability(rms_norm=FULL), "rms_norm")
    assert [case.id for case in cases] == [
        "float32",
        "float32-hidden=576",
        "float32-hidden=2048",
        "float32-hidden=65",
        "float16",
        "bfloat16",
        "float64",
    ]
    assert [case.pointer for case in cases[:4]] == ["/operators/rms_norm"] * 4


def test_what_is_not_declared_is_listed_with_the_pointer_that_refused():
    limits = {"hidden": {"multiple_of": 32}}
    run, absent = collected(capability(rms_norm=FULL | {"limits": limits}), "rms_norm")
    assert run == ["float32", "float32-hidden=576", "float32-hidden=2048", "float32-hidden=32"]
    assert absent == {
        "float32-hidden=65": "/operators/rms_norm/limits/hidden",
        "float16": "/operators/rms_norm/dtypes",
        "bfloat16": "/operators/rms_norm/dtypes",
    }


@pytest.mark.parametrize(
    ("bounds", "tried"),
    [({"max": 600}, []), ({"min": 100}, [100]), ({"min": 100, "multiple_of": 48}, [144])],
)
def test_bounds_name_their_least_value_but_none_if_they_are_an_upper_one(bounds, tried):
    cap = capability(rms_norm=FULL | {"limits": {"hidden": bounds}})
    assert [*values(cap, OPERATORS["rms_norm"], "hidden")][4:] == tried


@pytest.mark.parametrize(
    ("bounds", "tried"),
    [
        ({"multiple_of": 24}, [24, 48]),
        ({"multiple_of": 24, "max": 24}, [24]),
        ({"multiple_of": 24, "min": 100}, [120, 144]),
        ({"multiple_of": 16}, []),  # a sample, as are 32 and 128
        ({"multiple_of": 4}, [4]),
    ],
)
def test_a_multiple_that_no_sample_has_is_tried_twice(bounds, tried):
    cap = capability(reshape_and_cache=FULL | {"limits": {"block_size": bounds}})
    assert [*values(cap, OPERATORS["reshape_and_cache"], "block_size")][4:] == tried


def test_values_that_only_the_descriptor_names_are_tried():
    cap = capability(paged_attention=FULL | {"limits": {"head_size": [112], "window": [0, 64]}})
    run, absent = collected(cap, "paged_attention")
    assert run[0] == "float32-head_size=112"
    assert "float32-head_size=112-window=64" in run
    assert absent["float32-head_size=112-window=20"].endswith("/limits/window")
    assert absent["float32"].endswith("/limits/head_size")


def test_every_entry_has_a_base_case():
    entries = [
        FULL | {"limits": {"hidden": [64]}},
        FULL | {"limits": {"hidden": [4096]}, "dtypes": ["float16"], "variant": "wide"},
    ]
    cap = capability(rms_norm=entries)
    assert [base.id for base in base_cases(cap, "rms_norm")] == [
        "float32",
        "float16-hidden=4096",
    ]


def test_a_phase_that_no_entry_serves_leaves_nothing_to_bind():
    cap = capability(paged_attention=FULL | {"limits": {"phase": ["decode"]}})
    run, absent = collected(cap, "paged_attention")
    assert run == []
    assert absent["float32"] == "/operators/paged_attention/limits/phase"


def test_phases_may_be_served_by_several_entries():
    decode = FULL | {"limits": {"phase": ["decode"]}}
    rest = FULL | {"limits": {"phase": ["prefill", "mixed"]}, "variant": "long"}
    cap = capability(paged_attention=[decode, rest])
    assert "float32" in collected(cap, "paged_attention")[0]
    assert direct_case(cap, "paged_attention") is None
    whole = capability(paged_attention=FULL)
    assert direct_case(whole, "paged_attention").id == "float32"
    for bound_only in ({"plan": "acme:plan"}, {"prepare_weights": "acme:pack"}):
        assert direct_case(capability(linear=FULL | bound_only), "linear") is None


def test_a_part_serves_what_is_composed_of_it():
    run, absent = collected(capability(rms_norm=FULL), "fused_add_rms_norm")
    assert run[0] == "float32"
    assert absent["float16"] == "/operators/rms_norm/dtypes"


def test_a_support_word_is_the_reason_for_the_cases_that_it_names():
    entries = [FULL, {"support": "not_implemented", "limits": {"interleaved": [True]}}]
    _, absent = collected(capability(rotary_embedding=entries), "rotary_embedding")
    assert absent["float32-interleaved=True"] == "/operators/rotary_embedding/1/support"
    assert absent["float32-partial=True"] == "/operators/rotary_embedding/0/limits/partial"


@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator_has_a_case_that_must_be_refused(op):
    for cap in (capability(), capability(**{op: FULL | {"dtypes": list(DTYPES)}})):
        cases = undeclared(cap, op)
        assert cases[-1].facts["dtype"] == "float64"
        assert all(case.refusal.pointer.startswith("/operators/") for case in cases)


def test_what_lies_next_to_an_end_of_a_limit_must_be_refused():
    limits = {"head_size": {"min": 34, "max": 250, "multiple_of": 2}}
    cap = capability(paged_attention=FULL | {"limits": limits})
    tried = {case.facts["head_size"] for case in undeclared(cap, "paged_attention")}
    assert {34 - 2, 250 + 2} <= tried
    assert 252 not in {case.facts["head_size"] for case in variations(cap, "paged_attention")}


@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_that_is_not_declared_has_only_listed_cases(op):
    run, absent = collected(capability(), op)
    assert run == []
    assert absent == dict.fromkeys(DTYPES, f"/operators/{op}")


def test_ids_are_of_one_case_each():
    cap = capability(**{op: FULL | {"dtypes": list(DTYPES)} for op in OPERATORS})
    for op in OPERATORS:
        ids = [case.id for case in variations(cap, op)]
        assert len(ids) == len(set(ids))


def test_a_decoder_takes_the_first_shape_that_all_operators_declare():
    whole = dict.fromkeys(OPERATORS, FULL)
    assert decoder_shape(capability(**whole), "float32") == DecoderShape("float32", 32, 16, 1)
    whole["rotary_embedding"] = FULL | {"limits": {"head_size": [128]}}
    whole["silu_and_mul"] = FULL | {"limits": {"hidden": {"min": 512}}}
    found = decoder_shape(capability(**whole), "float32")
    assert (found.head_size, found.hidden) == (128, 768)
    del whole["linear"]
    missing = decoder_shape(capability(**whole), "float32")
    assert isinstance(missing, Reject)


def test_making_cases_imports_no_torch():
    script = (
        "import sys\n"
        "from vllm_adapter_conformance.rules import register_all\n"
        "import vllm_adapter_conformance.ops.cases\n"
        "register_all()\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
