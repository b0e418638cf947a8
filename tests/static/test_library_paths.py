"""`"run": "library:rms_norm"`: what `validate` says of it without loading anything."""

from __future__ import annotations

import json

import pytest

from vllm_adapter.cli.check_paths import check_file_and_paths
from vllm_adapter.contract.decision import OperatorEntry

pytestmark = pytest.mark.static


@pytest.fixture
def check(tmp_path):
    """check(op, device, **entry): faults of a descriptor in an adapter's package."""

    def faults(op="rms_norm", device=None, **entry):
        package = tmp_path / "vllm_adapter_acme"
        (package / "capabilities").mkdir(parents=True)
        manifest = {
            "schema": "vllm-adapter/manifest/1.0",
            "name": "acme",
            "vendor": "Acme",
            "api": ">=1.0,<2",
            "device": device or {"library": "lib/libacme.so"},
        }
        (package / "adapter.json").write_text(json.dumps(manifest))
        declared = {"support": "full", "dtypes": ["float32"], "run": "library:rms_norm"} | entry
        descriptor = {
            "schema": "vllm-adapter/capability/1.0",
            "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "acme"},
            "operators": {op: declared},
        }
        file = package / "capabilities/a1.json"
        file.write_text(json.dumps(descriptor))
        return [str(fault) for fault in check_file_and_paths(file).faults]

    return faults


def test_a_function_of_the_device_s_library_is_a_path(check):
    assert check() == []


def test_a_function_without_a_library(check):
    (fault,) = check(device={"torch_type": "acme"})
    assert fault.startswith("/operators/rms_norm/run")
    assert "names no library" in fault


def test_another_operator_s_function(check):
    (fault,) = check(op="layer_norm")
    assert "/operators/layer_norm/run" in fault
    assert "library:layer_norm" in fault


def test_a_plan_is_core_s(check):
    faults = check(
        op="paged_attention", run="library:paged_attention", plan="vllm_adapter_acme.x:plan"
    )
    assert any("leave out plan" in fault for fault in faults)


@pytest.mark.parametrize(
    ("run", "function"),
    [("library:gelu", "gelu"), ("vllm_adapter_acme.library:gelu", None), (None, None)],
)
def test_the_function_of_an_entry(run, function):
    assert OperatorEntry("full", "/operators/gelu", run=run).library_function == function
