"""An emulated device is listed, and never chosen unless it is asked for by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from vllm_adapter.contract.manifest import DeviceSection, Manifest
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.hostfacts.facts import HostFacts, OsFacts, PciDevice
from vllm_adapter.settings import AdapterFilter, Settings
from vllm_adapter_doctor.devices.manager import DeviceManager
from vllm_adapter_doctor.devices.roles import assign, parse_role

pytestmark = pytest.mark.static

MANIFEST = Manifest(
    "sim", "Acme", ">=1.0,<2", Path("adapter.json"), DeviceSection("sim"), emulated=True
)
RECORD = AdapterRecord(
    name="sim",
    package="vllm_adapter_sim",
    distribution="vllm-adapter-sim",
    version="1.0",
    status=Status.OK,
    manifest=MANIFEST,
    devices=(DeviceRecord(0, "sim:0", name="Simulated"),),
)


def manager(record=RECORD, names=(), pci=()):
    settings = Settings(adapters=AdapterFilter(frozenset(names), order=tuple(names)))
    facts = HostFacts(os=OsFacts(name="Linux", machine="x86_64"), pci=pci)
    return DeviceManager(facts, settings, (record,), live=True)


def test_it_is_no_accelerator_by_itself():
    choice = manager().choose()
    assert choice.chosen == ()
    assert choice.cpu
    assert choice.sentence == "only the CPU: there is no accelerator"
    (rejected,) = choice.rejected
    assert rejected.reason.startswith("emulated in software")
    assert "VA_ADAPTERS=sim" in rejected.next_step


def test_its_name_chooses_it():
    assert [one.device.id for one in manager(names=["sim"]).choose().chosen] == ["sim:0"]


def test_a_role_chooses_it():
    chosen = manager()
    (role,) = assign(chosen, [parse_role("main=sim:0")])
    assert [one.device.id for one in role.candidates] == ["sim:0"]


def test_the_same_device_in_hardware_is_chosen():
    record = dataclasses.replace(
        RECORD, manifest=msgspec.structs.replace(MANIFEST, emulated=False)
    )
    assert [one.device.id for one in manager(record).choose().chosen] == ["sim:0"]


def test_a_real_device_that_cannot_be_used_is_named_alone():
    gpu = PciDevice("0000:3b:00.0", "10de", "2335", "0x030200", 0)
    reason = manager(pci=(gpu,)).choose().sentence
    assert "cuda:0" in reason
    assert "sim:0" not in reason
