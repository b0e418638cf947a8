"""The dtype of `run`: the model's own, the nearest that is declared, or a refusal."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_llama import batch, tiny

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.integrations.transformers import adapt
from vllm_adapter.engine.integrations.transformers.dtype import NEEDED, choose, own_dtype
from vllm_adapter.errors import UnsupportedCase

pytestmark = pytest.mark.device


def entries(*dtypes, only=NEEDED, support="full"):
    run = {"form": "torch", "run": "a:b"} if support == "full" else {}
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "acme"},
        "operators": {op: {"support": support, "dtypes": list(dtypes), **run} for op in only},
    }
    return parse_capability(raw, "acme").operators


@pytest.mark.parametrize(
    ("declared", "own", "chosen"),
    [
        (["float16"], "float32", "float16"),
        (["float16"], "bfloat16", "float16"),
        (["float16", "float32"], "bfloat16", "float32"),
        (["float16", "bfloat16"], "float32", "bfloat16"),
        (["float16", "float32", "bfloat16"], "float16", "float16"),
        (["float16", "float32", "bfloat16"], "bfloat16", "bfloat16"),
        (["float16", "bfloat16"], "float64", "bfloat16"),
    ],
)
def test_the_models_own_or_the_nearest_that_is_declared(declared, own, chosen):
    assert choose("acme", entries(*declared), own) == chosen


def test_the_dtype_in_which_most_operators_are_declared_wins():
    both = {
        **entries("float32", "float16", only=NEEDED[:2]),
        **entries("float16", only=NEEDED[2:]),
    }
    assert choose("acme", both, "float32") == "float16"
    assert choose("acme", entries("float32", only=NEEDED[:1]), "bfloat16") == "float32"


@pytest.mark.parametrize(
    "given",
    [{}, entries("float16", only=["layer_norm"]), entries("float32", support="unsupported")],
)
def test_an_adapter_that_declares_nothing_is_refused(given):
    with pytest.raises(UnsupportedCase, match="adapter acme declares none") as caught:
        choose("acme", given, "float32")
    assert "--dtype float32" in caught.value.hint


def test_the_operators_needed_are_those_of_an_adapted_decoder():
    assert set(adapt(tiny()).providers) == set(NEEDED)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("named", [True, False], ids=["config", "weights alone"])
def test_the_own_dtype_of_a_folder(tmp_path, dtype, named):
    tiny(dtype=getattr(torch, dtype)).save_pretrained(tmp_path)
    if not named:
        config = json.loads((tmp_path / "config.json").read_text())
        config.pop("dtype", None)
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert own_dtype(str(tmp_path)) == dtype


def test_damaged_folders_are_left_to_the_loader(tmp_path):
    (tmp_path / "config.json").write_text("[1]")
    assert own_dtype(str(tmp_path)) == "float32"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x01")
    assert own_dtype(str(tmp_path)) == "float32"
    assert batch(1)["input_ids"].shape == (1, 1)
