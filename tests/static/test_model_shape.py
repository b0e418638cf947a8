"""Cases of level L3 are made from the descriptor, without torch and without transformers."""

from __future__ import annotations

import sys

import pytest

from vllm_adapter.cli.main import main
from vllm_adapter.contract.capability import parse_capability
from vllm_adapter_conformance.models.shape import ModelShape, model_shape

pytestmark = pytest.mark.static


def capability(**operators):
    full = {"support": "full", "dtypes": ["float32"], "run": "acme.kernels:run"}
    names = (
        "linear rms_norm fused_add_rms_norm silu_and_mul rotary_embedding reshape_and_cache "
        "paged_attention"
    )
    listed = {op: dict(full) for op in names.split()}
    for op, change in operators.items():
        listed[op] = listed.get(op, full) | change
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "cpu"},
        "operators": listed,
    }
    return parse_capability(raw, "acme")


def test_several_query_heads_a_kv_head_are_tried_first():
    assert model_shape(capability(), "llama", "float32") == ModelShape(
        "llama", "float32", 32, 16, 3
    )


def test_the_shape_keeps_to_the_limits():
    limits = {"head_size": [128], "gqa_ratio": [1]}
    found = model_shape(capability(paged_attention={"limits": limits}), "qwen3", "float32")
    assert (found.head_size, found.gqa_ratio, found.hidden) == (128, 1, 256)


def test_a_window_is_a_case_of_its_own():
    found = model_shape(capability(), "qwen3", "float32", windowed=True)
    assert found.pointer == "/operators/paged_attention/limits/window"
    both = capability(paged_attention={"limits": {"window": [0, 20]}})
    assert model_shape(both, "qwen3", "float32", windowed=True).window == 20


def test_a_head_norm_needs_rms_norm_of_one_head():
    wide = capability(rms_norm={"limits": {"hidden": {"min": 64}}})
    assert model_shape(wide, "llama", "float32").head_size == 32
    assert model_shape(wide, "qwen3", "float32").head_size == 64


@pytest.mark.parametrize(
    ("kind", "change", "pointer"),
    [
        ("llama", {"linear": {"limits": {"out_features": {"max": 100}}}}, "/operators/linear"),
        ("bert", {}, "/operators/attention"),
    ],
)
def test_what_an_operator_refuses_is_named_by_its_pointer(kind, change, pointer):
    assert model_shape(capability(**change), kind, "float32").pointer.startswith(pointer)


def test_without_transformers_one_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["certify", "cpu", "--level", "L3"]) == 2
    error = capsys.readouterr().err
    assert "L3 runs models of transformers, which is not installed" in error
    assert "vllm-adapter-conformance[models]" in error and "Traceback" not in error
