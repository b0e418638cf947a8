"""Other vendors' runtime rules on the simulated accelerator, and what their certificates say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_adapter.cli.main import main
from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status
from vllm_adapter.errors import AdapterError, InputError
from vllm_adapter.settings import Settings
from vllm_adapter_conformance.base.emulation import Emulator, emulated_record, emulator_of
from vllm_adapter_conformance.certificate.document import digest
from vllm_adapter_conformance.certificate.verification import faults, notes

pytestmark = pytest.mark.sim

ADAPTERS = Path(__file__).parents[2] / "adapters"
NAMES = {"ascend": "npu", "gaudi": "hpu", "musa": "musa"}


def record(name):
    package = ADAPTERS / name / f"src/vllm_adapter_{name}"
    return AdapterRecord(
        name,
        f"vllm-adapter-{name}",
        "0.1.0",
        package.name,
        status=Status.ABSENT,
        reason="not here",
        manifest=read_manifest(package / "adapter.json"),
        path=package,
    )


@pytest.fixture
def emulator(sim_path):
    return Emulator("sim", "vllm-adapter-sim", "0.1.0", sim_path, 2)


@pytest.fixture(params=NAMES)
def certified(request, tmp_path, sim_path):
    """The certificate of a run in a process of its own, with the library as it is in the tree."""
    name, file = request.param, tmp_path / "certificate.json"
    command = [sys.executable, "-m", "vllm_adapter.cli", "certify", name, "--level", "L1"]
    done = subprocess.run(
        [*command, "--emulate", "sim", "--output", str(file)],
        env={"PATH": "/usr/bin:/bin", "VA_LIBRARY": str(sim_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        f"emulated by sim in place of {NAMES[name]}:0: this says nothing of a chip" in done.stdout
    )
    return json.loads(file.read_text())


@pytest.mark.slow
def test_runtime_rules_hold_under_another_vendor_s_name(certified, sim_path):
    name = certified["adapter"]["name"]
    assert certified["level_reached"] == "L1"
    assert certified["emulated"] is True
    assert certified["badge"] is None
    assert certified["adapter"]["emulated"] is False
    assert certified["device"]["torch"] == f"{NAMES[name]}:0"
    assert certified["device"]["emulated_by"]["name"] == "sim"
    assert faults(certified) == []
    assert any("emulated by the library of sim" in note for note in notes(certified))
    opened = next(r for r in certified["rules"] if r["rule"] == "L1.device.open")
    assert opened["cases"][0]["outcome"] == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("certified", ["musa"], indirect=True)
def test_nobody_makes_a_chip_s_certificate_of_it(certified):
    for edit in (
        lambda d: d.update(emulated=False),
        lambda d: d["device"].pop("emulated_by"),
        lambda d: d.update(badge="L1"),
    ):
        changed = json.loads(json.dumps(certified))
        edit(changed)
        changed["digest"] = digest(changed)
        assert faults(changed)


def test_the_devices_are_as_many_as_the_library_has(emulator):
    found = emulated_record(record("ascend"), emulator, "910b")
    assert found.status is Status.OK
    assert [d.torch for d in found.devices] == ["npu:0", "npu:1"]
    assert found.devices[0].capability_file.name == "910b.json"
    assert Emulator.from_json(emulator.to_json()) == emulator


@pytest.mark.parametrize(
    ("name", "descriptor", "error", "sentence"),
    [
        ("ascend", "911", InputError, "adapter ascend has no descriptor 911"),
        ("cuda", None, AdapterError, "cuda is a device inside torch"),
        ("cpu", None, AdapterError, "cpu is a device inside torch"),
        ("sim", None, AdapterError, "its device is a C library already"),
    ],
)
def test_what_cannot_be_emulated_is_told(emulator, name, descriptor, error, sentence):
    with pytest.raises(error, match=sentence):
        emulated_record(record(name), emulator, descriptor)


def test_only_an_emulated_device_is_lent():
    with pytest.raises(InputError, match="adapter cpu lends no device"):
        emulator_of(record("cpu"), Settings())
    lent = record("sim")
    lent = AdapterRecord(
        *("sim", "vllm-adapter-sim", "0.1.0", lent.package),
        manifest=lent.manifest,
        devices=(DeviceRecord(0, "sim:0", name="x"),),
    )
    found = emulator_of(lent, Settings())
    assert found.devices == 1
    assert found.library.name == "libvllm_adapter_sim.so"


@pytest.mark.parametrize("level", ["L0", "L2"])
def test_other_levels_say_nothing_without_the_chip(capsys, level):
    assert main(["certify", "ascend", "--level", level, "--emulate", "sim"]) == 2
    assert f"up to L1, and {level} was asked for" in capsys.readouterr().err
