"""Probes that ask torch: which devices it shows, and why it shows none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from fake_dist import install_all

from vllm_adapter.contract.manifest import Manifest
from vllm_adapter.discovery import registry
from vllm_adapter.discovery.adapter import Adapter
from vllm_adapter.discovery.probe import probing
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.discovery.registry import Status
from vllm_adapter.errors import AdapterError, CapabilityError
from vllm_adapter.settings import AdapterFilter, Settings

pytestmark = pytest.mark.null

TORCH_MODULE = """
import sys, types, warnings
import torch

def is_available():
    warnings.warn("the driver is too old")
    return {count} > 0

torch.{kind} = types.SimpleNamespace(is_available=is_available, device_count=lambda: {count})
"""
DESCRIPTOR = {
    "schema": "vllm-adapter/capability/1.0",
    "identity": {"vendor": "Test", "arch": "a1", "torch_type": "acme"},
    "memory": {"capacity_bytes": 1, "source": {"kind": "datasheet", "reference": "a test"}},
}
PLUGIN = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def probe(self):
        return [{"name": "Acme A1", "arch": "a1"}, {"name": "Acme A2", "arch": "a2"}]

    @hookimpl
    def describe(self, device):
        return {"memory": {"capacity_bytes": 64 + int(device[-1])}}
"""


@pytest.fixture
def probed(site, monkeypatch):
    """Probes one adapter of the site, and gives its record."""
    monkeypatch.syspath_prepend(site.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.path / ".cache"))

    def probe(name):
        return registry.find(
            name, Settings(adapters=AdapterFilter(frozenset({name}))), accept=list(Status)
        )

    return probe


def acme(site, count, **manifest):
    """Installs `acme`, whose torch module shows `count` devices."""
    device = {"torch_type": "acme", "torch_module": "torch_acme"}
    package = site.make("acme", device=device, **manifest)
    source = TORCH_MODULE.format(kind="acme", count=count)
    (site.path / "torch_acme.py").write_text(source, encoding="utf-8")
    (package / "capabilities").mkdir()
    for arch in ("a1", "a2"):
        raw = DESCRIPTOR | {"identity": DESCRIPTOR["identity"] | {"arch": arch}}
        (package / "capabilities" / f"{arch}.json").write_text(json.dumps(raw), encoding="utf-8")


def test_the_cpu_is_ok_among_misbehaving_adapters(site):
    install_all(site.path)
    done = site.run(
        "-c",
        "import json; from vllm_adapter.discovery import registry; "
        "from vllm_adapter.settings import Settings\n"
        "records = registry.discover(Settings())\n"
        "records = registry.probe(records, limit_s=10)\n"
        "print(json.dumps([r.to_json() for r in records]))",
    )
    records = json.loads(done.stdout)
    status = {r["name"]: r["status"] for r in records if r["distribution"] != "vllm-adapter-twin"}
    assert status["cpu"] == status["prints"] == "ok"
    for kind in ("bad_manifest", "dotted", "exits", "hangs", "needs_lib", "raises", "segfaults"):
        assert status[kind] == "broken"
    assert status["old_api"] == "incompatible"
    assert all(r["reason"] and r["next_step"] for r in records if r["status"] != "ok")


def test_the_cpu_is_one_device_with_a_descriptor_and_live_values(probed):
    record = probed("cpu")
    assert record.status is Status.OK, record.reason
    (device,) = record.devices
    assert (device.index, device.torch) == (0, "cpu")
    assert device.capability_file.stem == device.arch
    capability = Adapter(record).capability(device, Settings())
    assert capability.memory.capacity_bytes == device.live["memory"]["capacity_bytes"]
    assert capability.source("/memory/capacity_bytes").kind == "queried"


def test_va_capability_replaces_the_descriptor_and_its_live_values(probed, tmp_path):
    record = probed("cpu")
    file = tmp_path / "mine.json"
    (device,) = record.devices
    identity = {"vendor": "Acme", "arch": device.arch, "torch_type": "cpu"}
    file.write_text(json.dumps(DESCRIPTOR | {"identity": identity}), encoding="utf-8")
    capability = Adapter(record).capability(device, Settings(capability=file))
    assert (capability.identity.vendor, capability.memory.capacity_bytes) == ("Acme", 1)


@pytest.mark.parametrize(
    ("identity", "says"),
    [({"arch": "a1"}, "is for the arch a1"), ({"torch_type": "cuda"}, "device type cuda")],
)
def test_va_capability_of_another_device_is_refused(probed, tmp_path, identity, says):
    record = probed("cpu")
    (device,) = record.devices
    file = tmp_path / "mine.json"
    whole = {"vendor": "Acme", "arch": device.arch} | identity
    file.write_text(json.dumps(DESCRIPTOR | {"identity": whole}), encoding="utf-8")
    with pytest.raises(CapabilityError, match=says):
        Adapter(record).capability(device, Settings(capability=file))


def test_each_device_gets_the_descriptor_of_its_arch_and_its_own_live_values(site, probed):
    acme(site, 2, plugin=PLUGIN)
    record = probed("acme")
    assert record.status is Status.OK, record.reason
    rows = [(d.torch, d.name, d.arch, d.capability_file.stem) for d in record.devices]
    assert rows == [("acme:0", "Acme A1", "a1", "a1"), ("acme:1", "Acme A2", "a2", "a2")]
    sizes = [
        Adapter(record).capability(device, Settings()).memory.capacity_bytes
        for device in record.devices
    ]
    assert sizes == [64, 65]
    assert "torch.acme shows 2 devices" in record.evidence


def test_torch_tells_which_device_is_which_and_what_is_live(site, probed):
    acme(site, 2)
    package = site.path / "vllm_adapter_acme" / "capabilities"
    for arch, units in (("a1", 10), ("a2", 8)):
        raw = json.loads((package / f"{arch}.json").read_text(encoding="utf-8"))
        raw["match"] = [{"device_name": [f"acme {arch}"]}]
        rate = {"throughput_gflops": 1000, "units": units}
        raw["compute_units"] = {"float16": rate, "source": {"kind": "datasheet"}}
        (package / f"{arch}.json").write_text(json.dumps(raw), encoding="utf-8")
    with (site.path / "torch_acme.py").open("a", encoding="utf-8") as module:
        module.write(
            "torch.acme.get_device_properties = lambda i: types.SimpleNamespace(\n"
            "    name=['Acme A2', 'Acme A1'][i], total_memory=100 + i, multi_processor_count=5)\n"
        )
    record = probed("acme")
    rows = [(d.torch, d.name, d.arch, d.capability_file.stem) for d in record.devices]
    assert rows == [("acme:0", "Acme A2", "a2", "a2"), ("acme:1", "Acme A1", "a1", "a1")]
    found = [Adapter(record).capability(device, Settings()) for device in record.devices]
    assert [one.memory.capacity_bytes for one in found] == [100, 101]
    assert [one.compute_units["float16"].peak_gflops for one in found] == [625, 500]
    assert found[0].source("/memory/capacity_bytes").kind == "queried"


def test_where_torch_shows_fewer_devices_nobody_guesses_which(site, probed):
    acme(site, 1, plugin=PLUGIN)
    (device,) = probed("acme").devices
    assert device.name == "Test"


def test_no_visible_device_is_absent_with_what_torch_said(site, probed):
    acme(site, 0)
    record = probed("acme")
    assert record.status is Status.ABSENT
    assert "shows no acme device: the driver is too old" in record.reason
    assert record.next_step.startswith("python -c")


def test_a_missing_torch_module_is_incompatible(site, probed):
    acme(site, 1)
    (site.path / "torch_acme.py").unlink()
    record = probed("acme")
    assert record.status is Status.INCOMPATIBLE
    assert "torch_acme" in record.reason


def test_a_torch_module_without_its_library_is_broken(site, probed):
    acme(site, 1)
    source = "import ctypes; ctypes.CDLL('libacme_that_is_missing.so')"
    (site.path / "torch_acme.py").write_text(source, encoding="utf-8")
    record = probed("acme")
    assert record.status is Status.BROKEN
    assert "importing torch_acme failed: OSError: libacme_that_is_missing.so" in record.reason
    assert record.next_step == "ldconfig -p | grep libacme_that_is_missing.so"


def test_a_torch_that_fails_to_count_is_broken(site, probed):
    acme(site, "1 // 0")
    record = probed("acme")
    assert record.status is Status.BROKEN
    assert "failed while it counted devices" in record.reason


def test_live_values_that_do_not_fit_the_descriptor_are_refused(site, probed):
    bad = PLUGIN.replace("64 + int(device[-1])", "'plenty'")
    acme(site, 2, plugin=bad)
    record = probed("acme")
    assert record.status is Status.BROKEN
    assert "`describe`" in record.reason


def test_a_device_without_descriptor_says_so_when_it_is_asked_for(site, probed):
    acme(site, 1, capabilities="none/*.json")
    record = probed("acme")
    (device,) = record.devices
    assert (record.status, device.capability_file, device.arch) == (Status.OK, None, None)
    assert "no capability descriptor of its own is for " in record.reason
    assert record.next_step == f"vllm-adapter validate {record.path}"
    with pytest.raises(AdapterError, match="no capability descriptor for acme:0"):
        Adapter(record).capability(device, Settings())


def test_a_device_type_that_torch_lacks_is_incompatible(site, probed):
    site.make("acme", device={"torch_type": "no_such_type"})
    record = probed("acme")
    assert record.status is Status.INCOMPATIBLE
    assert "is built without no_such_type support; this adapter needs a no_such_type build" in (
        record.reason
    )


@pytest.mark.parametrize(
    ("kind", "vendor", "compiled", "hip", "missing", "next_step"),
    [
        ("cuda", "10de", False, None, "CUDA", "pip install --force-reinstall torch==2.13.0"),
        ("cuda", "10de", True, None, None, None),
        ("cuda", "1002", True, None, "ROCm", "pip install --upgrade acme-dist"),
        ("cuda", "1002", True, "7.0", None, None),
        ("xpu", "8086", False, None, "XPU", "torch==2.13.0+xpu"),
    ],
)
def test_which_build_of_torch_is_needed(tmp_path, kind, vendor, compiled, hip, missing, next_step):
    match = [{"pci_vendor": vendor}]
    manifest = Manifest("acme", "Acme", ">=1.0", tmp_path / "adapter.json", match=match)
    record = AdapterRecord("acme", "acme-dist", "1.0", "vllm_adapter_acme", manifest=manifest)
    torch = SimpleNamespace(version=SimpleNamespace(hip=hip))
    backend = SimpleNamespace(_is_compiled=lambda: compiled)
    assert probing._missing_build(record, torch, kind, backend) == missing
    if missing:
        assert next_step in probing._other_build(record, missing, "2.13.0+cpu")


def test_live_values_that_are_no_json_are_refused(site, probed):
    plugin = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def describe(self):
        return {"memory": {"capacity_bytes": float("nan")}}
"""
    site.make("living", plugin=plugin, device={"torch_type": "cpu"})
    record = probed("living")
    assert record.status is Status.BROKEN
    assert "describe" in record.reason
