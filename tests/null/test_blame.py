"""A provider's kernel that raises is named: adapter, operator, file and line."""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.blame import kernels_blamed
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.providers import PROVIDERS, load
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.errors import AdapterError
from vllm_adapter.settings import Settings

pytestmark = pytest.mark.null

KERNELS = """
def rms_norm(x, weight, eps):
    return _inner(x)

def _inner(x):
    raise ZeroDivisionError("by the\\tchip")

def linear(x):
    return x

def helper():
    {}["gone"]
"""
CASES = {
    "rms_norm": {"dtype": "float32", "hidden": 64},
    "linear": {"dtype": "float32", "in_features": 64, "out_features": 8, "bias": False},
}


@pytest.fixture(params=["kernel", "torch"])
def opened(request, tmp_path, monkeypatch, fresh):
    """A device served by an adapter whose kernels are wrong."""
    module = f"acme_kernels_{request.param}"
    (tmp_path / f"{module}.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    entries = {
        op: {
            "support": "full",
            "dtypes": ["float32"],
            "form": request.param,
            "run": f"{module}:{op}",
            "limits": {"bias": [False, True]} if op == "linear" else {},
        }
        for op in CASES
    }
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1"},
        "operators": entries,
    }
    PROVIDERS.use("blamed", parse_capability(json.loads(json.dumps(raw)), "a1.json"), "cpu")
    record = SimpleNamespace(name="blamed", path=tmp_path)
    yield SimpleNamespace(
        device=torch.device("cpu"), adapter=SimpleNamespace(record=record), module=module
    )
    sys.modules.pop(module, None)


def run(op, *arguments):
    return bind(OpCase.of(op, "cpu", CASES[op]), Settings()).run(*arguments)


def test_a_kernel_that_raises_is_named_with_its_line(opened):
    with pytest.raises(AdapterError) as caught, kernels_blamed(opened):
        run("rms_norm", torch.ones(1, 64), torch.ones(64), 1e-5)
    said = caught.value.message
    assert said.startswith("adapter blamed: its rms_norm (acme_kernels_")
    assert "failed: ZeroDivisionError: by the chip (" in said and ".py:6)" in said
    assert "vllm-adapter certify blamed" in caught.value.hint


def test_a_kernel_of_the_wrong_signature_is_named(opened):
    with pytest.raises(AdapterError, match=r"adapter blamed: its linear \(.*takes 1 positional"):
        with kernels_blamed(opened):
            run("linear", torch.ones(1, 64), torch.ones(8, 64), None, 8)


def test_other_code_of_the_adapter_is_named_without_an_operator(opened):
    with pytest.raises(AdapterError, match=r"adapter blamed: its helper failed: KeyError: 'gone'"):
        with kernels_blamed(opened):
            importlib.import_module(opened.module).helper()


def test_what_is_not_the_adapters_passes(opened):
    with pytest.raises(ValueError), kernels_blamed(opened):
        int("x")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def run(:\n", r"SyntaxError: .*broken_kernels\.py:1\)"),
        ("\nraise ValueError('no chip')\n", r"ValueError: no chip \(.*broken_kernels\.py:2\)"),
        ("import sys\nsys.exit('bye')\n", r"SystemExit: bye"),
    ],
)
def test_whatever_an_import_raises_names_adapter_path_and_line(
    source, says, tmp_path, monkeypatch
):
    (tmp_path / "broken_kernels.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AdapterError, match=rf"adapter acme names broken_kernels:run.*{says}"):
        load("broken_kernels:run", "acme")
