"""VA_* variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.errors import SettingError
from vllm_adapter.settings import VARIABLES, Fallback, Settings

pytestmark = pytest.mark.static


def test_nothing_set_is_the_default():
    assert Settings.from_environ({}) == Settings()
    assert Settings.from_environ(dict.fromkeys(VARIABLES, " ")) == Settings()


def test_every_variable_is_read():
    got = Settings.from_environ(
        {
            "VA_ADAPTERS": "cuda, cpu,-rocm",
            "VA_CAPABILITY": "a.json",
            "VA_COUNTERS": "/tmp/counts",
            "VA_FALLBACK": "ERROR",
            "VA_LIBRARY": "/x/lib.so",
            "VA_OPS": "rms_norm:torch, linear : acme",
            "VA_REQUIRE_DEVICE": "cuda",
            "VA_SELECTION": "/tmp/s.json",
            "VA_SHAPE": "Generic",
            "PATH": "/bin",
        }
    )
    assert got.adapters.allowed == {"cuda", "cpu"}
    assert got.adapters.denied == {"rocm"}
    assert got.capability == Path("a.json")
    assert got.counters == Path("/tmp/counts")
    assert got.fallback is Fallback.ERROR
    assert got.library == Path("/x/lib.so")
    assert got.ops == {"rms_norm": "torch", "linear": "acme"}
    assert got.require_device == "cuda"
    assert got.selection == Path("/tmp/s.json")
    assert got.shape == "generic"
    assert got.unknown == ()


def test_the_filter_gives_its_reason():
    adapters = Settings.from_environ({"VA_ADAPTERS": "cuda,-rocm"}).adapters
    assert adapters.blocks("cuda") is None
    assert adapters.blocks("rocm") == "VA_ADAPTERS denies it (-rocm)"
    assert adapters.blocks("xpu") == "VA_ADAPTERS allows only cuda"
    only_denied = Settings.from_environ({"VA_ADAPTERS": "-rocm"}).adapters
    assert only_denied.blocks("xpu") is None


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("VA_ADAPTERS", "cuda rocm", "commas"),
        ("VA_ADAPTERS", "--x", "commas"),
        ("VA_FALLBACK", "never", "error, warn, allow"),
        ("VA_OPS", "rms_norm", "OPERATOR:PROVIDER"),
        ("VA_OPS", ":torch", "OPERATOR:PROVIDER"),
        ("VA_SHAPE", "any", "native, generic"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused(variable, value, hint):
    with pytest.raises(SettingError, match=variable) as caught:
        Settings.from_environ({variable: value})
    assert hint in caught.value.hint


def test_a_misspelt_variable_is_a_warning():
    got = Settings.from_environ({"VA_FALBACK": "error", "VA_ZZZ": "1"})
    assert got.unknown == ("VA_FALBACK", "VA_ZZZ")
    assert got.warnings() == [
        "the variable VA_FALBACK is not one of ours; did you mean VA_FALLBACK?",
        "the variable VA_ZZZ is not one of ours",
    ]


@given(st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.text(max_size=12)))
def test_any_value_is_read_or_refused(environ):
    try:
        Settings.from_environ(environ)
    except SettingError as error:
        assert error.hint
