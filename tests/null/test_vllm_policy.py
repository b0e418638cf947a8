"""Which operators replace vLLM's own kernels: those that are not slower, and those asked for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import vllm_adapter_cpu
from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.engine.device import open_device
from vllm_adapter.engine.integrations.vllm import policy
from vllm_adapter.errors import UnsupportedCase
from vllm_adapter.settings import Settings

pytestmark = pytest.mark.null

LINEAR = {"dtype": "float32", "in_features": 32, "out_features": 16, "bias": False}
NORM = {"dtype": "float32", "hidden": 32}


@pytest.fixture
def active(fresh):
    """active(speeds, shape, **variables) has the CPU adapter serve vLLM with what it measured."""
    opened = open_device("cpu")

    def use(speeds, shape="native", **variables):
        raw = dict(opened.capability.raw) | {"vllm": {"relative_speed": speeds}}
        capability = parse_capability(raw, "test.json")
        settings = Settings.from_environ({f"VA_{k}": v for k, v in variables.items()})
        found = policy.ActiveAdapter(
            opened.adapter.record, "cpu", capability, opened.own(settings), None, shape
        )
        policy.use(found)
        return found

    return use


MEASURED = {"linear": 0.5, "rms_norm": 1.02}
CASES = {
    "nothing was measured": (None, "native", {}, {"linear", "rms_norm", "silu_and_mul"}),
    "what is not slower": (MEASURED, "native", {}, {"rms_norm"}),
    "an empty table": ({}, "native", {}, set()),
    "a wish": (MEASURED, "native", {"OPS": "linear:cpu"}, {"linear", "rms_norm"}),
    "error": (MEASURED, "native", {"FALLBACK": "error"}, {"linear", "rms_norm", "silu_and_mul"}),
    "allow is no wish": (MEASURED, "native", {"FALLBACK": "allow"}, {"rms_norm"}),
    "vLLM has no kernels": (MEASURED, "generic", {}, {"linear", "rms_norm", "silu_and_mul"}),
}


@pytest.mark.parametrize(("speeds", "shape", "variables", "taken"), CASES.values(), ids=CASES)
def test_what_replaces_vllm_s_own_kernels(active, speeds, shape, variables, taken):
    active(speeds, shape, **variables)
    ops = {"linear": LINEAR, "rms_norm": NORM, "silu_and_mul": NORM}
    assert {op for op in ops if policy.concerns(op)} == taken
    for op, facts in ops.items():
        if op in taken:
            assert policy.require_adapter_kernel(op, facts).case.op == op
        else:
            with pytest.raises(UnsupportedCase) as refused:
                policy.require_adapter_kernel(op, facts)
            assert f"VA_OPS={op}:cpu takes it all the same" in str(refused.value)


def test_the_reason_has_the_figure_and_a_wish_its_cost(active):
    active(MEASURED)
    assert policy.costs() == []
    assert policy.measured_slower("linear") == (
        "with cpu's linear decoding reaches 0.5 of plain vLLM's speed"
    )
    unknown = "cpu's silu_and_mul was not measured against vLLM's own kernel"
    assert policy.measured_slower("silu_and_mul") == unknown
    active(MEASURED, OPS="linear:cpu,silu_and_mul:cpu,rms_norm:cpu")
    assert policy.costs() == [
        "with cpu's linear decoding reaches 0.5 of plain vLLM's speed, and VA_OPS asks for it",
        f"{unknown}, and VA_OPS asks for it",
    ]
    active(MEASURED, FALLBACK="error")
    assert any("VA_FALLBACK=error asks for it" in sentence for sentence in policy.costs())


def test_the_fingerprint_changes_with_what_decides(active):
    base = active(MEASURED)
    assert policy.fingerprint(base) == policy.fingerprint(active(MEASURED))
    record = dataclasses.replace(base.record, version="9")
    others = [
        active({"linear": 0.6}),
        active(MEASURED, "generic"),
        active(MEASURED, OPS="linear:cpu"),
        active(MEASURED, FALLBACK="error"),
        dataclasses.replace(base, record=record),
        dataclasses.replace(base, device="cpu:1"),
    ]
    assert len({policy.fingerprint(one) for one in (base, *others)}) == len(others) + 1


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_cpu_adapter_has_a_source_for_what_it_says(arch):
    file = Path(vllm_adapter_cpu.__file__).parent / f"capabilities/{arch}.json"
    capability = parse_capability(json.loads(file.read_text("utf-8")), str(file))
    speeds = capability.vllm.relative_speed
    assert speeds is not None
    source = capability.source("/vllm/relative_speed")
    assert source.kind == ("measured" if speeds else "assumed")
    assert source.reference
    assert set(speeds) <= set(capability.operators)
    pairs = ("paged_attention", "reshape_and_cache"), ("rms_norm", "fused_add_rms_norm")
    for one, other in pairs:  # they were measured together
        assert speeds.get(one) == speeds.get(other)
