"""The package is imported a second time in one process, as notebooks do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.device

TESTS = Path(__file__).parents[1]
PROLOGUE = f"""
import importlib, sys
sys.path.insert(0, {str(TESTS)!r})
import torch

def forget():
    for name in [n for n in sys.modules if n.partition(".")[0].startswith("vllm_adapter")]:
        del sys.modules[name]

def reload():
    for name in [n for n in sys.modules if n.partition(".")[0].startswith("vllm_adapter")]:
        if not name.rpartition(".")[2].startswith("_"):
            importlib.reload(sys.modules[name])

def norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

x, weight = torch.randn(3, 64), torch.randn(64)
want = norm(x, weight, 1e-6)
"""
BOUND = """
def bound():
    from vllm_adapter.engine.device import open_device
    from vllm_adapter.engine.ops.bind import bind
    from vllm_adapter.engine.ops.spec import OpCase
    open_device("cpu")
    return bind(OpCase.of("rms_norm", "cpu", {"dtype": "float32", "hidden": 64}))

torch.testing.assert_close(bound().run(x, weight, 1e-6), want)
first = torch.ops.vllm_adapter.rms_norm
torch.testing.assert_close(first(x, weight, 1e-6), want)
for again in (forget, reload, forget):
    again()
    torch.testing.assert_close(bound().run(x, weight, 1e-6), want)
    for packet in (first, torch.ops.vllm_adapter.rms_norm):
        torch.testing.assert_close(packet(x, weight, 1e-6), want)
    torch.testing.assert_close(torch.compile(first, backend="eager")(x, weight, 1e-6), want)
assert first.overloads() == torch.ops.vllm_adapter.rms_norm.overloads()
"""
ADAPTED = """
from tiny_llama import batch, greedy, twins

def adapted(model):
    from vllm_adapter.engine.integrations.transformers import adapt
    adapt(model, "cpu")
    return model

given = batch(5, 16, 1)
plain, older = twins("llama")
want = greedy(plain, given, 8)
assert torch.equal(greedy(adapted(older), given, 8), want)
for again in (forget, reload):
    again()
    _, newer = twins("llama")
    adapted(newer)
    for model in (newer, older, newer):
        assert torch.equal(greedy(model, given, 8), want), again
"""
NEWEST = """
import types
kernels = sys.modules["own_kernels"] = types.ModuleType("own_kernels")
kernels.norm = lambda x, weight, eps: norm(x, weight, eps)

def run():
    from vllm_adapter.contract.capability import parse_capability
    from vllm_adapter.engine.ops.bind import bind
    from vllm_adapter.engine.ops.providers import PROVIDERS
    from vllm_adapter.engine.ops.spec import OpCase
    entry = {"support": "full", "dtypes": ["float32"], "form": "kernel", "run": "own_kernels:norm"}
    raw = {"schema": "vllm-adapter/capability/1.0", "operators": {"rms_norm": entry},
           "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "cpu"}}
    PROVIDERS.use("acme", parse_capability(raw, "acme"), "cpu")
    case = OpCase.of("rms_norm", "cpu", {"dtype": "float32", "hidden": 64})
    return bind(case).run(x, weight, 1e-6)

torch.testing.assert_close(run(), want)
kernels.norm = lambda x, weight, eps: 2 * norm(x, weight, eps)
forget()
torch.testing.assert_close(run(), 2 * want)
"""
UPGRADED = """
import vllm_adapter.engine.ops.bind
forget()
import vllm_adapter.engine.ops.catalog.layers as module
import dataclasses
from vllm_adapter.engine.ops import library
from vllm_adapter.errors import AdapterError
other = dataclasses.replace(module.RMS_NORM, schema="(Tensor x, Tensor weight) -> Tensor")
try:
    library.define_default(other, norm, norm)
except AdapterError as error:
    print(error)
"""


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "script", [BOUND, ADAPTED, NEWEST], ids=["bindings", "transformers", "newest"]
)
def test_a_second_import_gives_right_results_and_the_newest_kernels(script):
    run(script)


def test_another_release_s_schema_is_refused_in_a_sentence():
    said = run(UPGRADED)
    assert "another release of vllm-adapter-core was imported in this process before" in said
    assert "hint: restart Python" in said
