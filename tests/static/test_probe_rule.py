"""Whose devices are on a box: open reports, the suite's boxes, and adapters that claim more."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import make_boxes
import pytest
from fake_dist import install, write_adapter

from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.match import match
from vllm_adapter_conformance.base.bench import Bench
from vllm_adapter_conformance.base.rule import NotDeclaredCase
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.plan.suite import make_plan
from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.rules._boxes import boxes
from vllm_adapter_conformance.run.execution import run_item
from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.devices.recognition import recognise
from vllm_adapter_doctor.report.read import read_report

pytestmark = pytest.mark.static

RULE = "L0.probe.boxes"
REPORTS = Path(__file__).parents[1] / "data/reports"
SUITE = Path(__file__).parents[2] / "conformance/src/vllm_adapter_conformance/rules/boxes.json"
ADAPTERS = Path(__file__).parents[2] / "adapters"
DEVICES = json.loads((REPORTS / "devices.json").read_text(encoding="utf-8"))
NAMES = ("cuda", "rocm", "xpu", "ascend", "gaudi", "musa", "mlu", "biren")
MANIFESTS = {
    name: read_manifest(ADAPTERS / name / f"src/vllm_adapter_{name}/adapter.json")
    for name in NAMES
}


@pytest.mark.parametrize("file", sorted(REPORTS.rglob("*.txt")), ids=lambda file: file.name)
def test_devices_of_every_open_report(file):
    """The table was written by hand, from the answers to the reports."""
    facts, expected = read_report(str(file)), DEVICES.get(file.relative_to(REPORTS).as_posix(), {})
    found = {name: len(recognise(one, facts)) for name, one in MANIFESTS.items()}
    assert {name: n for name, n in found.items() if n} == {
        name: n for name, n in expected.items() if name in MANIFESTS
    }
    seen = Counter(one.vendor for one in inventory(facts).devices if not one.integrated)
    assert seen == expected


def test_the_table_names_reports_that_are_there():
    assert [name for name in DEVICES if not (REPORTS / name).is_file()] == []


def test_the_suite_s_boxes_are_those_of_the_reports():
    assert SUITE.read_text(encoding="utf-8") == make_boxes.render()


def test_no_box_names_a_machine():
    text = SUITE.read_text(encoding="utf-8")
    assert not re.search(r"uuid|hostname|serial", text, re.IGNORECASE)
    assert len(boxes()) == text.count("\n") - 2


@pytest.mark.parametrize("box", boxes().values(), ids=lambda box: box.id)
def test_a_box_has_the_devices_that_it_says(box):
    seen = Counter(one.vendor for one in inventory(box.facts).devices if not one.integrated)
    assert seen == box.devices


@pytest.mark.parametrize("name", NAMES)
def test_our_adapters_pass(name):
    manifest = MANIFESTS[name]
    record = AdapterRecord(
        name,
        f"vllm-adapter-{name}",
        "0",
        f"vllm_adapter_{name}",
        manifest=manifest,
        path=manifest.path.parent,
    )
    target = Target(record, HostFacts(), None, None)
    found = outcomes(target)
    assert {id for id, result in found.items() if result.outcome != "pass"} == set()
    of_ours = [one for one in boxes().values() if name in one.devices]
    live = [one for one in of_ours if one.facts.pci]
    assert live
    assert all(found[f"{RULE}[{one.id}]"].note == f"{one.devices[name]} devices" for one in live)


def outcomes(target):
    plan, bench = make_plan(target, "L0", registered()), Bench(target)
    return {item.id: run_item(bench, item) for item in plan.of_rule(RULE)}


TORCH_IS_MINE = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def probe(self, host):
        torch = host.torch
        here = torch is not None and torch.cuda is not None and torch.available
        return [{"name": "NVIDIA GPU"}] * torch.visible_devices if here else []
"""
RAISES = """
from vllm_adapter.contract.hookspecs import hookimpl

class Plugin:
    @hookimpl
    def probe(self, host):
        return [{"name": one.driver.title()} for one in host.pci[:1]]
"""
MUTANTS = {
    # what it is: (name, what its manifest has, plug-in, boxes on which it fails)
    "a device node alone": (
        "rocm",
        {"vendor": "AMD", "torch": "cuda", "match": [{"device_node": "/dev/kfd"}]},
        None,
        {"hygon-8xk100", "amd-laptop"},
    ),
    "what torch calls cuda": (
        "cuda",
        {"vendor": "NVIDIA", "torch": "cuda", "match": [{"os": ["Linux"]}]},
        TORCH_IS_MINE,
        {"metax-8xc500", "thead-8", "iluvatar-2"},
    ),
    "any display": (
        "xpu",
        {"vendor": "Intel", "torch": "xpu", "match": [{"pci_class": ["0x0300", "0x0380"]}]},
        None,
        {"intel-laptop-with-npu", "plain-server", "huawei-server-without-npu", "virtual-machine"},
    ),
    "the vendor without the class": (
        "cuda",
        {"vendor": "NVIDIA", "torch": "cuda", "match": [{"pci_vendor": "10de"}]},
        None,
        {"nvidia-switches-and-sound"},
    ),
    "any accelerator node": (
        "gaudi",
        {"vendor": "Intel Gaudi", "torch": "hpu", "match": [{"device_node": "/dev/accel/*"}]},
        None,
        {"intel-laptop-with-npu"},
    ),
    "nothing at all": (
        "cuda",
        {"vendor": "NVIDIA", "torch": "cuda", "match": [{"device_node": "/dev/nothing"}]},
        None,
        {"own"},
    ),
    "a probe that raises": (
        "acme",
        {"vendor": "Acme", "torch": "acme", "match": [{"os": ["Linux"]}]},
        RAISES,
        {"plain-server"},
    ),
}


def made(name, manifest, plugin, tmp_path, monkeypatch):
    torch = manifest.pop("torch", None)
    device = {"device": {"torch_type": torch}} if torch else {}
    folder = write_adapter(tmp_path / "source", name, plugin=plugin, **manifest, **device)
    path = install(folder, tmp_path / "site", name=f"vllm-adapter-{name}", entry_name=name)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    # a plug-in is asked once in a process, by its module's name
    package = path.rename(path.with_name(f"mutant_{tmp_path.name}"))
    if plugin is not None:
        text = (package / "adapter.json").read_text().replace(path.name, package.name)
        (package / "adapter.json").write_text(text)
    record = AdapterRecord(
        name,
        f"vllm-adapter-{name}",
        "1.0",
        package.name,
        manifest=read_manifest(package / "adapter.json"),
        path=package,
    )
    return Target(record, HostFacts(), None, None)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_adapter_that_claims_others_boxes_fails(mutant, tmp_path, monkeypatch):
    name, manifest, plugin, boxes_ = MUTANTS[mutant]
    found = outcomes(made(name, dict(manifest), plugin, tmp_path, monkeypatch))
    failed = {id for id, result in found.items() if result.outcome == "fail"}
    assert {f"{RULE}[{box}]" for box in boxes_} <= failed


def test_an_adapter_of_a_vendor_that_nobody_knows_claims_nothing(tmp_path, monkeypatch):
    manifest = {"vendor": "Acme", "torch": "acme", "match": [{"pci_vendor": "fff1"}]}
    found = outcomes(made("acme", manifest, None, tmp_path, monkeypatch))
    assert {result.outcome for result in found.values()} == {"pass"}
    assert len(found) == len(boxes())


def test_a_second_adapter_of_a_vendor_may_claim_its_boxes(tmp_path, monkeypatch):
    manifest = {
        "vendor": "nvidia",
        "torch": "cuda",
        "match": [{"pci_vendor": "10de", "pci_class": ["0x0302"]}],
    }
    found = outcomes(made("hopper", manifest, None, tmp_path, monkeypatch))
    assert {result.outcome for result in found.values()} == {"pass"}


def test_kernels_and_the_host_s_cpu_are_not_asked(tmp_path, monkeypatch):
    target = made("kernels", {"vendor": "X"}, None, tmp_path, monkeypatch)
    plan = make_plan(target, "L0", registered())
    assert plan.of_rule(RULE) == []
    assert plan.not_declared[RULE] == [
        NotDeclaredCase("boxes", "/match", "the adapter brings no device")
    ]


def test_every_mutant_s_box_is_matched_by_nobody_of_ours():
    for name in ("plain-server", "virtual-machine", "hygon-8xk100", "metax-8xc500"):
        host = boxes()[name].facts
        assert [one for one in NAMES if match(MANIFESTS[one].match, host)] == []
