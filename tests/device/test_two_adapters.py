"""Two adapters that own one torch device: the one named runs, and neither harms the other."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
import torch

from vllm_adapter.engine.ops.bind import bind, resolved
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.errors import UnsupportedCase
from vllm_adapter.settings import Fallback, Settings

pytestmark = pytest.mark.device
TESTS = Path(__file__).parent.parent


def named(adapter, fallback=Fallback.ERROR, **ops):
    return Settings(fallback=fallback, ops=ops, adapter=adapter)


def norm_case(dtype="float32"):
    return OpCase.of("rms_norm", "cpu", {"dtype": dtype, "hidden": 64})


def asked(settings, case=None):
    return [v.candidate.provider for v in resolved(case or norm_case(), settings).verdicts]


def test_the_named_adapter_is_the_one_of_the_device_that_is_asked(use):
    one, other = use(rms_norm={"run": "norm"}), use(rms_norm={"run": "other_norm"})
    kernels = use(kernels_only=True, rms_norm={"run": "norm"})
    assert asked(named(one)) == [one, kernels, "torch"]
    assert asked(named(other)) == [other, kernels, "torch"]
    assert bind(norm_case(), named(one)).providers == (one,)
    assert bind(norm_case(), named(other)).providers == (other,)
    assert bind(norm_case(), named(one)).providers == (one,)


def test_what_the_named_adapter_refuses_another_of_the_device_does_not_take(use):
    one = use(rms_norm={"run": "norm"})
    use(rms_norm={"run": "other_norm", "dtypes": ["float16"]})
    with pytest.raises(UnsupportedCase, match=r"got 'float16', need \['float32'\]"):
        bind(norm_case("float16"), named(one))
    assert bind(norm_case("float16"), named(one, Fallback.ALLOW)).providers == ("torch",)


def test_va_ops_may_name_the_other_one(use):
    one, other = use(rms_norm={"run": "norm"}), use(rms_norm={"run": "other_norm"})
    assert bind(norm_case(), named(one, rms_norm=other)).providers == (other,)
    assert asked(named(one, rms_norm=other)) == [other, one, "torch"]


def test_opening_one_again_changes_nothing_and_the_first_one_serves_direct_calls(use, calls):
    one, other = use(rms_norm={"run": "norm"}), use(rms_norm={"run": "other_norm"})
    before, generation = bind(norm_case(), named(one)), PROVIDERS.generation
    use(one, rms_norm={"run": "norm"})
    assert PROVIDERS.generation == generation and bind(norm_case(), named(one)) is before
    torch.ops.vllm_adapter.rms_norm(torch.randn(2, 64), torch.randn(64), 1e-6)
    assert calls == ["norm"] and asked(Settings()) == [one, other, "torch"]


KERNELS = """
import torch

def wrong(x, weight, eps):
    return torch.zeros_like(x)
"""
OPENS = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def implementations(self):
        raise RuntimeError("none today")
"""
SCRIPT = """
import copy
import torch
from tiny_llama import batch, greedy, twins
from vllm_adapter.engine.device import open_device
from vllm_adapter.engine.integrations.transformers import adapt, unadapt
from vllm_adapter.errors import VllmAdapterError

plain, mine = twins()
given = batch(5, 3)
want = greedy(plain, given, 8)
first = copy.deepcopy(mine)
for name in {before}:
    try:
        wrong = copy.deepcopy(mine)
        adapted = adapt(wrong, name)
        assert adapted.providers["rms_norm"] == (name,), adapted.providers
        assert not torch.equal(greedy(wrong, given, 8), want)
    except VllmAdapterError as error:
        print(name, "fails:", error.message)
adapted = adapt(mine, "cpu")
assert {{n for names in adapted.providers.values() for n in names}} <= {{
    "cpu", "cpu (decode)", "cpu (planned)", "cpu (composed)"}}, adapted.providers
assert torch.equal(greedy(mine, given, 8), want)
unadapt(mine)
print("right")
"""


def add(site, name, run, plugin=None):
    """An adapter of the CPU as good as `cpu`, except for its rms_norm."""
    import vllm_adapter_cpu

    package = site.make(
        name, plugin=plugin, device={"torch_type": "cpu"}, capabilities="capabilities/*.json"
    )
    (package / "kernels.py").write_text(KERNELS, encoding="utf-8")
    theirs = vllm_adapter_cpu.__path__[0]
    (package / "capabilities").mkdir()
    for arch in ("x86_64", "aarch64"):
        with open(f"{theirs}/capabilities/{arch}.json", encoding="utf-8") as file:
            raw = json.load(file)
        raw["operators"] = json.loads(
            json.dumps(raw["operators"]).replace('"planned"', '"other_planned"')
        )
        raw["operators"]["rms_norm"]["run"] = run.format(package=package.name)
        raw["operators"].pop("fused_add_rms_norm", None)
        (package / f"capabilities/{arch}.json").write_text(json.dumps(raw), encoding="utf-8")


def test_a_model_on_cpu_runs_on_cpu_whatever_was_opened_before(site, tmp_path):
    add(site, "kernwrong", "{package}.kernels:wrong")
    add(site, "kernraises", "{package}.nowhere:wrong")
    add(site, "kernopens", "{package}.kernels:wrong", OPENS)
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n"
        + textwrap.dedent(SCRIPT).format(before=["kernopens", "kernwrong", "kernraises"]),
        encoding="utf-8",
    )
    done = site.run(str(script))
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "right"
    assert "kernopens fails: adapter kernopens: its hook `implementations` failed" in said[0]
    assert "kernraises fails: adapter kernraises names" in said[1]
