"""The rules of L0 are themselves tested: each fault of a package is seen by a named rule."""

from __future__ import annotations

import importlib.util
import json

import pytest
from fake_dist import install

from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.errors import ManifestError
from vllm_adapter.hostfacts.facts import HostFacts, TorchBuild
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import NotDeclaredCase
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.judge.outcome import BLOCKED, Result, blocker
from vllm_adapter_conformance.plan.suite import make_plan
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run.execution import run_item

pytestmark = pytest.mark.static

HAS_TORCH = importlib.util.find_spec("torch") is not None
MANIFEST = {
    "schema": "vllm-adapter/manifest/1.0",
    "name": "acme",
    "vendor": "Acme",
    "api": ">=1.0,<2",
    "device": {"torch_type": "acme", "torch_module": "torch_acme"},
    "match": [{"pci_vendor": "fff1"}],
    "plugin": "vllm_adapter_acme.plugin:Plugin",
    "tested_on": [],
}
DESCRIPTOR = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "acme"},
    "memory": {
        "capacity_bytes": 1 << 34,
        "source": {"kind": "datasheet", "reference": "/opt/acme/lib/manual.pdf, page 3"},
    },
    "vllm": {"dist_backend": "acmecl", "visible_devices_variable": None},
    "operators": {
        "rms_norm": {
            "support": "full",
            "dtypes": ["float16"],
            "limits": {"hidden": {"min": 16, "multiple_of": 16}},
            "run": "vllm_adapter_acme.kernels:rms_norm",
        }
    },
}
PLUGIN = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def describe(self, device):
        return {}
"""
KERNELS = """
import torch

if torch:
    def rms_norm(x, weight, eps):
        return x
"""
REQUIRES = ("vllm-adapter-core>=0.1,<0.2", "torch>=2.11; extra == 'stock'")


class Package:
    """The healthy package; a test changes one thing, installs it and asks which rules fail."""

    def __init__(self, tmp_path):
        self.files = {
            "__init__.py": '"""Acme: libraries lie in /usr/lib/libacme.so."""\n',
            "plugin.py": PLUGIN,
            "kernels.py": KERNELS,
        }
        self.manifest, self.descriptor = dict(MANIFEST), json.loads(json.dumps(DESCRIPTOR))
        self.requires, self.torch = REQUIRES, TorchBuild("2.13.0")
        self.tmp_path = tmp_path
        self.reader = None

    def install(self):
        folder = self.tmp_path / "source" / "vllm_adapter_acme"
        (folder / "capabilities").mkdir(parents=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "adapter.json").write_text(json.dumps(self.manifest), encoding="utf-8")
        if self.descriptor is not None:
            text = json.dumps(self.descriptor)
            (folder / "capabilities/a1.json").write_text(text, encoding="utf-8")
        path = install(
            folder.parent,
            self.tmp_path / "site",
            name="vllm-adapter-acme",
            entry_name="acme",
            requires=self.requires,
        )
        if self.reader is not None:
            name, value = self.reader
            points = next((self.tmp_path / "site").glob("*.dist-info/entry_points.txt"))
            text = f"\n[vllm_adapter.health]\n{name} = {value}\n"
            points.write_text(points.read_text() + text)
        try:
            manifest = read_manifest(path / "adapter.json")
        except ManifestError:
            manifest = None
        record = AdapterRecord(
            "acme", "vllm-adapter-acme", "1.0", path.name, manifest=manifest, path=path
        )
        return Target(record, HostFacts(torch=self.torch), None, None)


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return Package(tmp_path)


def results_of(target: Target) -> dict[str, Result]:
    """The result of each item; what is blocked is left out, as in a real run."""
    plan, bench, results = make_plan(target, "L0", registered()), Bench(target), {}
    for item in plan.items:
        why = blocker(item.rule, plan, results)
        results[item.id] = (
            Result(item.id, BLOCKED, blocked_by=why) if why else run_item(bench, item)
        )
    return {id: result for id, result in results.items() if result.outcome != BLOCKED}


def failing(target: Target) -> dict[str, str]:
    """What each rule that fails saw first."""
    found = {}
    for item, result in results_of(target).items():
        if result.outcome != "pass":
            found.setdefault(item.partition("[")[0], result.seen)
    return found


def test_a_healthy_package_passes_every_rule(package):
    assert failing(package.install()) == {}


def change(path, value):
    """A change of the manifest or descriptor: `path` is the document, then keys."""

    def apply(package):
        document, *keys, last = path.split("/")
        at = getattr(package, document)
        for key in keys:
            at = at[key]
        at[last] = value

    return apply


def write(name, text):
    return lambda package: package.files.update({name: text})


def requires(*lines):
    return lambda package: setattr(package, "requires", lines)


RMS = "descriptor/operators/rms_norm/"
MARKED = """
from vllm_adapter.engine.ops.implementation import implementation

@implementation(op="rms_norm", dtypes=["float32"])
def rms_norm(x, weight, eps):
    return x
"""
GIVES = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def implementations(self):
        from vllm_adapter_acme.kernels import rms_norm
        return [rms_norm]
"""
REGISTERS = """
import torch
from torch.library import Library, register_kernel

{line}
"""
REGISTRATIONS = {
    "a fragment": 'kept = Library("vllm_adapter", "FRAGMENT")',
    "by keyword": 'kept = torch.library.Library(ns="vllm_adapter", kind="IMPL")',
    "a kernel": 'register_kernel("vllm_adapter::rms_norm.cpu", "cpu")(print)',
    "a new operator": 'torch.library.define("vllm_adapter::mine", "(Tensor x) -> Tensor")',
}
"""Lines that register something in core's namespace."""
FAULTS = {
    **{
        name: (
            write("more.py", REGISTERS.format(line=line)),
            "L0.package.registrations",
            "more.py:5",
        )
        for name, line in REGISTRATIONS.items()
    },
    "manifest key": (change("manifest/matches", []), "L0.manifest.schema", "the unknown key"),
    "manifest name": (change("manifest/name", "acne"), "L0.manifest.name", "acne"),
    "descriptor word": (change(f"{RMS}support", "yes"), "L0.descriptor.schema", "/support"),
    "twins": (
        change(
            "descriptor/operators/rms_norm",
            [
                {"support": "full", "dtypes": ["float16"], "run": "vllm_adapter_acme.kernels:a"},
                {"support": "full", "dtypes": ["float32"], "run": "vllm_adapter_acme.kernels:b"},
            ],
        ),
        "L0.descriptor.schema",
        "variant",
    ),
    "no source": (
        change("descriptor/memory", {"capacity_bytes": 1 << 34}),
        "L0.descriptor.sources",
        "/memory/capacity_bytes",
    ),
    "guesses": (
        change("descriptor/memory/source", {"kind": "assumed"}),
        "L0.descriptor.assumed",
        "1",
    ),
    "nothing said of hardware": (
        lambda package: package.manifest.pop("tested_on"),
        "L0.manifest.hardware",
        "no such key",
    ),
    "tested on what is not there": (
        change("manifest/tested_on", ["a2"]),
        "L0.manifest.hardware",
        "a2",
    ),
    "measured, and never run": (
        change("descriptor/memory/source", {"kind": "measured"}),
        "L0.manifest.hardware",
        "1 of them",
    ),
    "no collectives": (
        change("descriptor/vllm", {"visible_devices_variable": "ACME_VISIBLE_DEVICES"}),
        "L0.descriptor.vllm",
        "no dist_backend",
    ),
    "limits": (
        change(f"{RMS}limits", {"hidden": {"min": 17, "max": 31, "multiple_of": 16}}),
        "L0.descriptor.operators",
        "none",
    ),
    "no module": (
        change(f"{RMS}run", "vllm_adapter_acme.kernel:rms_norm"),
        "L0.descriptor.paths",
        "no module vllm_adapter_acme.kernel",
    ),
    "no name": (
        change(f"{RMS}run", "vllm_adapter_acme.kernels:rms"),
        "L0.descriptor.paths",
        "no top-level name rms",
    ),
    "a library's function, and no library": (
        change(f"{RMS}run", "library:rms_norm"),
        "L0.descriptor.library",
        "names no library",
    ),
    "another operator's function": (
        lambda package: (
            package.manifest.update(device={"library": "libacme.so", "torch_type": "acme"}),
            change(f"{RMS}run", "library:layer_norm")(package),
        ),
        "L0.descriptor.library",
        "library:rms_norm",
    ),
    "a plan beside a library's": (
        lambda package: (
            package.manifest.update(device={"library": "libacme.so", "torch_type": "acme"}),
            change(f"{RMS}run", "library:rms_norm")(package),
            change(f"{RMS}plan", "vllm_adapter_acme.kernels:rms_norm")(package),
        ),
        "L0.descriptor.library",
        "leave out plan",
    ),
    "no plug-in class": (
        change("manifest/plugin", "vllm_adapter_acme.plugin:Plug"),
        "L0.descriptor.paths",
        "Plug",
    ),
    "library path in Python": (
        write("kernels.py", f'{KERNELS}\nPATH = "/opt/acme/lib64/libacme.so.1"\n'),
        "L0.package.paths",
        "/opt/acme/lib64/libacme.so.1 in kernels.py:",
    ),
    "library path in JSON": (
        change("descriptor/identity/name", "A1 /usr/lib/libacme.so"),
        "L0.package.paths",
        "a1.json",
    ),
    "imports torch": (
        write("plugin.py", f"import torch\n{PLUGIN}"),
        "L0.package.imports",
        "torch",
    ),
    "imports the SDK": (
        lambda package: package.files.update(
            {"plugin.py": f"import sys\nsys.modules['torch_acme'] = sys\n{PLUGIN}"}
        ),
        "L0.package.imports",
        "torch_acme",
    ),
    "dies while imported": (
        write("plugin.py", f"import os\nos._exit(9)\n{PLUGIN}"),
        "L0.package.imports",
        "code 9",
    ),
    "misspelt hook": (
        write("plugin.py", PLUGIN.replace("def describe", "def discribe")),
        "L0.package.hooks",
        "discribe",
    ),
    "hook without its mark": (
        write("plugin.py", PLUGIN.replace("    @hookimpl\n", "")),
        "L0.package.hooks",
        "describe",
    ),
    "hooks that nobody calls": (
        write(
            "plugin.py",
            PLUGIN.replace("def describe(self, device)", "def communicator(self, device)"),
        ),
        "L0.package.hooks",
        "communicator (waits for",
    ),
    "hook's argument": (
        write("plugin.py", PLUGIN.replace("self, device", "self, chip")),
        "L0.package.hooks",
        "chip",
    ),
    "mark and descriptor": (
        lambda package: package.files.update({"plugin.py": GIVES, "kernels.py": MARKED}),
        "L0.package.implementations",
        "float32",
    ),
    "another vendor's device": (
        change("manifest/match", [{"device_node": "/dev/kfd"}]),
        "L0.probe.boxes",
        "1 claimed",
    ),
    "core not required": (requires("numpy"), "L0.package.requires", "numpy"),
    "stock torch": (
        requires("vllm-adapter-core", "torch>=2.11"),
        "L0.package.requires",
        "torch>=2.11",
    ),
    "stock torch by core": (
        requires("vllm-adapter-core[torch]"),
        "L0.package.requires",
        "vllm-adapter-core[torch]",
    ),
    "no descriptor": (
        lambda package: setattr(package, "descriptor", None),
        "L0.descriptor.schema",
        "neither declared nor refused",
    ),
}


IMPORTING = pytest.param("imports torch", marks=pytest.mark.slow)


@pytest.mark.parametrize("fault", [IMPORTING if f == "imports torch" else f for f in FAULTS])
def test_each_fault_is_seen_by_its_rule(package, fault):
    apply, rule, word = FAULTS[fault]
    if rule == "L0.package.implementations" and not HAS_TORCH:
        pytest.skip("marks are read by core's engine, which needs torch")
    apply(package)
    found = failing(package.install())
    assert word in found.get(rule, ""), found


def test_every_rule_sees_some_fault(package):
    rules = {rule.id for rule in make_plan(package.install(), "L0", registered()).rules}
    assert rules == {rule for _, rule, _ in FAULTS.values()} | {"L0.package.health"}


@pytest.mark.skipif(not HAS_TORCH, reason="marks are read by core's engine")
def test_registrations_in_a_namespace_of_its_own_are_the_adapter_s_affair(package):
    line = 'kept = Library("acme", "FRAGMENT"); kept.define("vllm_adapter(Tensor x) -> Tensor")'
    package.files["more.py"] = REGISTERS.format(line=line) + 'print("vllm_adapter::rms_norm")\n'
    assert failing(package.install()) == {}


def test_implementations_that_agree(package):
    package.files |= {"plugin.py": GIVES, "kernels.py": MARKED}
    change(f"{RMS}dtypes", ["float32"])(package)
    change(f"{RMS}limits", {})(package)
    assert failing(package.install()) == {}


def test_implementations_wait_for_torch(package):
    package.files |= {"plugin.py": GIVES, "kernels.py": MARKED}
    package.torch = None
    plan = make_plan(package.install(), "L0", registered())
    assert plan.not_declared["L0.package.implementations"] == [
        NotDeclaredCase("plug-in", "/plugin", "torch is not installed here")
    ]


def test_a_bad_manifest_blocks_what_needs_it(package):
    change("manifest/name", 7)(package)
    assert set(failing(package.install())) == {"L0.manifest.schema"}


def reader(text, *, name="acme", value="vllm_adapter_acme.health"):
    """A reader of health with this source."""

    def apply(package):
        package.files["health.py"] = text
        package.reader = (name, value)

    return apply


FAULT = """print('{"fault": "no library"}')"""


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (reader(FAULT), None),
        (reader("""print('a banner'); print('{"index": 0, "temperature_c": 40}')"""), None),
        (reader(FAULT, name="other"), "the package brings no adapter other"),
        (reader(FAULT, name="cuda"), "the name is reserved to vllm-adapter-cuda"),
        (reader(FAULT, value="json.tool"), "no module of the adapter's package"),
        (reader(FAULT, value="vllm_adapter_acme.nowhere"), "No module named"),
        (reader("import vllm_adapter.errors"), "vllm_adapter"),
        (reader("import os; os.abort()"), "was killed by SIGABRT"),
        (reader("if __name__ == '__main__': raise SystemExit(3)"), "ended with exit code 3"),
        (reader("pass"), "neither"),
        (reader("""print('{"index": "0"}')"""), "/index should be a whole number from 0"),
        (reader("""print('{"index": 0, "temprature_c": 40}')"""), "unknown field temprature_c"),
    ],
)
def test_the_reader_of_health(package, change, seen):
    change(package)
    found = failing(package.install())
    assert list(found) == ([] if seen is None else ["L0.package.health"])
    assert seen is None or seen in found["L0.package.health"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("capabilities/a1.json", "{ not json"),
        ("capabilities/a1.json", ""),
        ("capabilities/a1.json", "[1, 2]"),
        ("capabilities/a1.json", '"\\ud800"'),
        ("capabilities/a1.json", "[" * 20_000),
        ("capabilities/a1.json", '{"schema": "vllm-adapter/capability/9.0"}'),
        ("capabilities/a1.json", '{"schema": "vllm-adapter/capability/1.0", "operators": 3}'),
        ("kernels.py", "def rms_norm(x, weight, eps:\n"),
        ("kernels.py", "x = '\\ud800'\n\0"),
        ("plugin.py", "import torch_acme_sdk_that_is_not_there\n"),
        ("plugin.py", "raise RuntimeError('two\\nlines')\n"),
        ("plugin.py", "class Plugin:\n    x = (\n"),
        ("other.json", "{"),
    ],
)
def test_a_malformed_package_fails_in_sentences(package, file, text):
    if file.startswith("capabilities"):
        package.descriptor = None
    package.files[file] = text
    results = results_of(package.install())
    failures = [one for one in results.values() if one.outcome == "fail"]
    assert failures
    for one in failures:
        assert "without an error" not in one.expected, one
        assert one.seen and "Traceback" not in one.seen
