"""Which form of weights a chip is offered, from its descriptor alone."""

from __future__ import annotations

import pytest

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.contract.quantization import FORMS, MOST_PERPLEXITY, QUANTIZE, form_of, offers


def chip(**numerics):
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "acme1"},
        "numerics": {**numerics, "source": {"kind": "assumed"}},
    }
    return parse_capability(raw, "acme1.json")


@pytest.mark.parametrize("flavour", ["e4m3fn", "e4m3fnuz"])
def test_a_chip_with_the_units_gets_its_own_float(flavour):
    found = offers(chip(native_fp8=True, fp8_flavour=flavour), "fp8")
    assert [one.scheme for one in found] == [f"float8_{flavour}", "int8"]
    assert form_of(f"float8_{flavour}") == "fp8"


@pytest.mark.parametrize(
    ("numerics", "pointer"),
    [
        ({}, "/numerics/native_fp8"),
        ({"native_fp8": False, "fp8_flavour": "e4m3fn"}, "/numerics/native_fp8"),
        ({"native_fp8": True}, "/numerics/fp8_flavour"),
    ],
)
def test_a_chip_without_them_falls_to_eight_bits_with_the_reason(numerics, pointer):
    for asked in ("fp8", "auto"):
        first, second = offers(chip(**numerics), asked)
        assert (first.scheme, second.scheme) == (None, "int8")
        assert first.reject.pointer == pointer


def test_every_word_has_its_turns_and_every_form_its_limit():
    assert set(FORMS) == set(QUANTIZE)
    assert offers(chip(), "none") == ()
    assert {form for forms in FORMS.values() for form in forms} == set(MOST_PERPLEXITY)
    assert [one.scheme for one in offers(chip(), "int4")] == ["int4", "int8"]
