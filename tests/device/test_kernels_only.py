"""A kernels-only adapter serves another's device: behind its own adapter, before core's code."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from fake_dist import write_adapter

from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.kernels_only import descriptor_for

pytestmark = pytest.mark.device
TESTS = Path(__file__).parent.parent

SCRIPT = """
import dataclasses, json
from tiny_llama import batch, greedy, twins
from vllm_adapter.engine.device import open_device
from vllm_adapter.engine.integrations.transformers import adapt
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.settings import Fallback, Settings

WIDE = {"dtype": "float32", "head_size": 320, "block_size": 16, "gqa_ratio": 1, "window": 0,
        "soft_cap": 0.0, "kv_dtype": "auto"}
plain, mine = twins()
given = batch(5, 3)
adapted = adapt(mine, "cpu")
settings = dataclasses.replace(Settings.from_environ(), fallback=Fallback.ERROR)
settings = adapted.opened.own(settings)
def ask(op, **facts):
    return bind(OpCase.of(op, "cpu", facts), settings).providers
print(json.dumps({
    "right": bool((greedy(mine, given, 8) == greedy(plain, given, 8)).all()),
    "rms_norm": adapted.providers["rms_norm"],
    "linear": adapted.providers["linear"],
    "wide": ask("paged_attention", **WIDE),
    "embedding": ask("embedding", dtype="float32", hidden=64),
}))
"""


@pytest.fixture
def say(site, tmp_path):
    """say(**variables) -> (what the script prints, its stderr)."""

    def run(**variables):
        script = tmp_path / "script.py"
        text = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n{textwrap.dedent(SCRIPT)}"
        script.write_text(text, encoding="utf-8")
        done = site.run(str(script), variables=variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run


@pytest.fixture
def explain(site):
    """explain(adapter, op, **variables) -> what each answer says runs the case."""

    def run(adapter, op, **variables):
        words = ("-m", "vllm_adapter.cli", "explain", adapter, op, "--json")
        done = site.run(*words, variables=variables)
        assert done.returncode == 0, done.stderr
        mine = {"aarch64", "any", "x86_64"}
        found = [d for d in json.loads(done.stdout)["descriptors"] if d["arch"] in mine]
        return [d["operators"][op] for d in found]

    return run


def test_it_is_bound_where_the_devices_own_adapter_does_not_serve(site, say, explain):
    site.add("kernels")
    done = site.run("-m", "vllm_adapter.cli", "list", "--probe", "--json")
    status = {r["name"]: r["status"] for r in json.loads(done.stdout)["adapters"]}
    assert status["kernels"] == "ok"
    said, err = say()
    assert said == {
        "right": True,
        "rms_norm": ["cpu"],
        "linear": ["cpu"],
        "wide": ["kernels"],
        "embedding": ["cpu"],
    }
    assert "kernels-only" not in err
    for cases in explain("cpu", "rms_norm"):
        assert cases[0]["picks"] == {"every step": "cpu"}
        ranks = [(e["provider"], e["rank"]) for e in cases[0]["entries"]]
        assert ranks == [("cpu", "device"), ("kernels", "kernels"), ("torch", "generic")]


def test_va_ops_puts_it_first(site, say, explain):
    site.add("kernels")
    ops = "rms_norm:kernels,embedding:kernels"
    said, _ = say(VA_OPS=ops)
    assert said["right"] and said["rms_norm"] == said["embedding"] == ["kernels"]
    assert said["linear"] == ["cpu"]
    for adapter in ("cpu", "kernels"):
        for cases in explain(adapter, "embedding", VA_OPS=ops):
            assert cases[0]["picks"] == {"every step": "kernels"}
            assert "VA_OPS names it" in cases[0]["why"]


def test_it_is_explained_on_the_device_that_it_serves(site, explain):
    site.add("kernels")
    site.run("-m", "vllm_adapter.cli", "list", "--probe")
    (cases,) = explain("kernels", "paged_attention")
    assert cases[0]["why"].startswith("cpu: /operators/paged_attention/0, only phase decode")
    (cases,) = explain("kernels", "rms_norm")
    assert cases[0]["picks"] == {"every step": "cpu"}


def test_va_adapters_keeps_it_away(site, say):
    site.add("kernels")
    script = "from vllm_adapter.discovery.kernels_only import kernels_only; "
    script += "from vllm_adapter.settings import Settings; "
    script += "print([r.name for r in kernels_only(Settings.from_environ())])"
    assert site.run("-c", script).stdout.strip() == "['kernels']"
    for names in ("-kernels", "cpu"):
        done = site.run("-c", script, variables={"VA_ADAPTERS": names})
        assert done.stdout.strip() == "[]"


BROKEN = "raise RuntimeError('no toolchain')\n"


def test_a_broken_one_is_named_and_takes_nothing_down(site, say):
    package = site.make("brittle", plugin=BROKEN)
    (package / "capabilities").mkdir()
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Test", "arch": "any", "torch_type": "cpu"},
        "match": [{"arch": ["x86_64", "aarch64"]}],
        "operators": {},
    }
    (package / "capabilities/cpu.json").write_text(json.dumps(raw), encoding="utf-8")
    site.add("kernels")
    said, err = say()
    assert said["right"] and said["wide"] == ["kernels"]
    assert "the kernels-only adapter brittle is not used, it is broken" in err
    assert "no toolchain" in err


@pytest.mark.parametrize(
    ("identity", "match", "fits"),
    [
        ({"arch": "a1"}, None, True),
        ({"arch": "a1", "torch_type": "cuda"}, None, True),
        ({"arch": "a1", "torch_type": "cpu"}, None, False),
        ({"arch": "a2"}, None, False),
        ({"arch": "any"}, [{"arch": ["a1", "a2"]}], True),
        ({"arch": "any"}, [{"arch": ["a2"]}], False),
        ({"arch": "any"}, [{"device_name": ["*One"]}], True),
    ],
)
def test_a_descriptor_is_for_a_device_by_torch_type_and_arch(tmp_path, identity, match, fits):
    folder = write_adapter(tmp_path, "kern") / "vllm_adapter_kern"
    (folder / "capabilities").mkdir()
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Test"} | identity,
        **({"match": match} if match else {}),
    }
    (folder / "capabilities/one.json").write_text(json.dumps(raw), encoding="utf-8")
    own = {"vendor": "Acme", "arch": "a1", "torch_type": "cuda", "name": "Acme One"}
    device = parse_capability(
        {"schema": "vllm-adapter/capability/1.0", "identity": own}, "acme.json"
    )
    found = descriptor_for(read_manifest(folder / "adapter.json"), device, "cuda")
    assert (found is not None) == fits


def test_one_without_a_descriptor_is_told_that_nothing_of_it_is_used(site):
    site.make("bare")
    done = site.run("-m", "vllm_adapter.cli", "list", "--probe", "--json")
    (bare,) = [r for r in json.loads(done.stdout)["adapters"] if r["name"] == "bare"]
    assert bare["status"] == "ok"
    assert "no capability descriptor says for which devices" in bare["reason"]
