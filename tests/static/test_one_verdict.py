"""`doctor`, `devices`, `container` and `serve` read one list of verdicts: they cannot disagree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.cli.main import main
from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.finding import Severity
from vllm_adapter.discovery import registry
from vllm_adapter.discovery.descriptors import load_all
from vllm_adapter.hostfacts.device_facts import Driver, Health
from vllm_adapter.hostfacts.facts import (
    Accelerator,
    DeviceNode,
    HostFacts,
    Line,
    OsFacts,
    TorchBuild,
)
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter.settings import Settings
from vllm_adapter_doctor.containers.image import facts_inside, image_notes, torch_of
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.device_decisions import decisions_of_devices
from vllm_adapter_doctor.devices.device_names import has_no_bfloat16
from vllm_adapter_doctor.devices.health_rules import kinds, status_verdict
from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.devices.roles import RoleRequest, assign
from vllm_adapter_doctor.devices.verdict import PLACE, Outcome
from vllm_adapter_doctor.findings.device_stops import device_manager, stops, stops_without_finding
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "tests/data/reports", ROOT / "tests/data/healthy", ROOT.parent / "shared/cases")
REPORTS = [file for folder in FOLDERS for file in sorted(folder.rglob("*.txt"))]
RECORDS = registry.scan(Settings())
GIB = 1 << 30

DRIVER_535 = """\
PyTorch version: 2.9.0+cu130
CUDA used to build PyTorch: 13.0
Is CUDA available: False
GPU models and configuration:
GPU 0: NVIDIA H100 80GB HBM3
GPU 1: NVIDIA H100 80GB HBM3

Nvidia driver version: 535.183.06
"""
B300 = """\
{"schema": "vllm-adapter/facts/1.0",
 "torch": {"version": "2.12.0+cu130", "cuda": "13.0", "archs": ["sm_80", "sm_90", "sm_100a"]},
 "accelerators": [
 {"vendor": "cuda", "index": 0, "source": "nvidia-smi", "name": "NVIDIA B300 SXM6 AC"}]}
"""
FOUR = """\
PyTorch version: 2.6.0+cu124
CUDA used to build PyTorch: 12.4
Is CUDA available: True
GPU models and configuration:
GPU 0: NVIDIA GeForce RTX 5090
GPU 1: NVIDIA GeForce RTX 5090
GPU 2: NVIDIA GeForce RTX 5090
GPU 3: NVIDIA GeForce RTX 5090

Nvidia driver version: 575.57.08
NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch \
installation.
"""
FAILED = """\
{"schema": "vllm-adapter/facts/1.0", "accelerators": [
 {"vendor": "xpu", "index": 0, "source": "xpu-smi", "name": "Arc B60",
  "health": {"status": "Failed"}}]}
"""
OLD_510 = (FOLDERS[0] / "collect-env/01-cuda-driver-510-torch-cu121-unavailable.txt").read_text()


def says(capsys, *words):
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (OLD_510, "VA1101"),
        (DRIVER_535, "VA1101"),
        (B300, "VA1203"),
        (FOUR, "VA1203"),
        (FAILED, "VA1704"),
    ],
    ids=["driver-510-cu121", "driver-535-cu130", "b300-sm_100a", "four-equal-cards", "failed"],
)
def test_every_command_says_the_same_of_a_device(tmp_path, capsys, text, code):
    report = tmp_path / "report.txt"
    report.write_text(text)
    rc, found = says(capsys, "doctor", "--report", str(report))
    assert rc == 1 and code in {one["code"] for one in found["findings"]}
    rc, listed = says(capsys, "devices", "--report", str(report))
    assert rc == 1 and listed["choice"]["chosen"] == ["cpu"] and listed["terms"] == []
    assert [one["reasons"][0]["code"] for one in listed["devices"]] == [code] * len(
        listed["devices"]
    )
    rc, flags = says(capsys, "container", "--report", str(report))
    assert rc == 1 and flags.get("devices", ["cpu"]) == ["cpu"]
    first = listed["devices"][0]["id"]
    rc, flags = says(capsys, "container", "--report", str(report), "--role", f"main={first}")
    assert rc == 1 and flags["flags"] == []
    assert main(["devices", "--report", str(report)]) == 1
    assert "chosen\n" not in capsys.readouterr().out


def test_one_cards_error_is_that_cards_alone():
    facts = parse_report(FOUR.replace("RTX 5090\n", "RTX 4090\n").replace("4090", "5090", 1))
    manager = device_manager(facts, Settings(), RECORDS)
    choice = manager.choose()
    assert [one.device.id for one in choice.chosen] == ["cuda:1", "cuda:2", "cuda:3"]
    assert not any("torch sees" in note for note in choice.notes)


def test_a_lost_card_leaves_its_siblings():
    lost = Accelerator("cuda", 2, "smi", name="A10", health=Health(errors=("GPU is lost",)))
    good = [Accelerator("cuda", n, "smi", name="A10") for n in (0, 1, 3)]
    facts = HostFacts(accelerators=(*good, lost), report=(Line(1, "a report"),))
    choice = device_manager(facts, Settings()).choose()
    assert [one.device.id for one in choice.chosen] == ["cuda:0", "cuda:1", "cuda:3"]
    assert choice.rejected[0].refusals[0].code == "VA1701"


def test_a_driver_that_torch_says_to_work_is_not_refused():
    """A forward-compatibility package on an A10."""
    text = DRIVER_535.replace("available: False", "available: True")
    facts = parse_report(text)
    assert not diagnose_errors(facts)
    (one, _) = device_manager(facts, Settings(), RECORDS).choose().chosen
    said = {verdict.subject: verdict.reason for verdict in one.verdicts}
    assert "torch says that it works" in said["driver"]


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        *((word, None) for word in ("OK", "Good", "healthy", "PASS", "Unknown", "N/A", "")),
        *((word, Outcome.NOTE) for word in ("Warning", "degraded")),
        *((word, Outcome.REFUSE) for word in ("Failed", "Alarm", "Unknown Error", "Schlecht")),
    ],
)
def test_health_is_judged_by_its_good_words(word, outcome):
    said = status_verdict(Accelerator("xpu", 0, "xpu-smi", health=Health(status=word)))
    assert (said.outcome if said else None) is outcome


def test_what_the_doctor_calls_an_error_of_a_device_stops_it():
    for kind in kinds():
        assert kind.outcome is not Outcome.REFUSE or CODES[kind.code].stops, kind


def diagnose_errors(facts):
    return [one for one in diagnose(ExaminedHost(facts)) if one.severity is Severity.ERROR]


def agree(facts):
    """No two of them contradict each other on these facts."""
    manager = device_manager(facts, Settings(), RECORDS)
    choice = manager.choose()
    chosen = {one.device.id for one in choice.chosen}
    assert not any(verdict.stops for one in choice.chosen for verdict in one.verdicts)
    for said in decisions_of_devices(manager, choice.chosen):
        assert all(one.outcome is not Outcome.REFUSE for one, _ in said.decisions)
    assert not chosen & set(stops(diagnose_errors(facts), inventory(facts)))
    assert bool(chosen) is choice.good
    findings = diagnose(ExaminedHost(facts))
    codes = {one.code for one in (*findings, *stops_without_finding(manager, findings))}
    for one in manager.candidates():
        refused = {v.code for v in one.verdicts if v.outcome is Outcome.REFUSE and v.code}
        explained = {code for each in codes for code in CODES[each].explains}
        if not any(verdict.outcome is Outcome.BY_NAME for verdict in one.verdicts):
            assert refused <= codes | explained
    outside = {one.device.id for one in replace(manager, outside=True).choose().chosen}
    for one in manager.candidates():
        ours = [v for v in one.verdicts if v.subject not in PLACE]
        assert one.device.id not in outside or not any(verdict.stops for verdict in ours)
        (role,) = assign(manager, [RoleRequest("r", one.device.vendor, (one.device.index,))])
        assert bool(role.faults) is any(v.outcome is Outcome.REFUSE for v in one.verdicts)


@pytest.mark.parametrize("file", REPORTS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_they_agree_on_every_report(file):
    agree(parse_report(file.read_bytes()))


NAMES = ("NVIDIA B300", "NVIDIA GeForce RTX 5090", "NVIDIA A10", "Tesla V100", "Tesla K80", None)
ERRORS = ("GPU is lost", "Xid 48: DBE", "Xid 119: GSP", "GPU reset begin!", "3 corrected errors")
LINES = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
    "NVIDIA A10 with CUDA capability sm_86 is not compatible with the current PyTorch",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "Failed to initialize NVML: Driver/library version mismatch",
    "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
)
accelerators = st.builds(
    Accelerator,
    st.sampled_from(["cuda", "cuda", "rocm", "xpu"]),
    st.integers(0, 3),
    st.sampled_from(["nvidia-smi", "torch"]),
    name=st.sampled_from(NAMES),
    arch=st.sampled_from([None, None, "sm_103", "sm_37", "sm_90", "gfx942"]),
    bdf=st.sampled_from([None, "0000:3b:00.0"]),
    memory_total_bytes=st.sampled_from([None, 4 * GIB, 80 * GIB]),
    integrated=st.sampled_from([None, None, True]),
    partition=st.sampled_from([None, None, None, "MIG"]),
    health=st.builds(
        Health,
        status=st.sampled_from([None, "OK", "Warning", "Failed", "Alarm"]),
        errors=st.lists(st.sampled_from(ERRORS), max_size=2).map(tuple),
    ),
)
torches = st.builds(
    TorchBuild,
    version=st.sampled_from([None, "2.7.0+cu126", "2.9.0+cu130", "2.6.0", "2.12.0"]),
    local=st.sampled_from([None, "cu121", "cpu"]),
    cuda=st.sampled_from([None, "11.8", "12.1", "13.0"]),
    archs=st.sampled_from([(), ("sm_100a",), ("sm_80", "sm_90"), ("gfx942",)]),
    available=st.sampled_from([None, True, False]),
)
hosts = st.builds(
    HostFacts,
    accelerators=st.lists(accelerators, max_size=4).map(tuple),
    drivers=st.lists(
        st.builds(
            Driver,
            st.sampled_from(["nvidia", "windows", "cuda", "amdgpu"]),
            st.sampled_from(["390.157", "450.36.06", "510.47.03", "535.183", "580.65.06", "12.4"]),
            st.just("test"),
        ),
        max_size=2,
    ).map(tuple),
    torch=st.none() | torches,
    report=st.lists(st.sampled_from(LINES), max_size=2).map(
        lambda lines: tuple(Line(n, text) for n, text in enumerate(("a report", *lines), 1))
    ),
)
nodes = st.lists(
    st.builds(
        lambda path, opens: DeviceNode(path, "char", opens, opens),
        st.sampled_from(
            "/dev/nvidiactl /dev/nvidia-uvm /dev/nvidia0 /dev/nvidia1 /dev/kfd "
            "/dev/dri/renderD128 /dev/davinci0 /dev/davinci_manager".split()
        ),
        st.sampled_from([True, True, False]),
    ),
    max_size=6,
    unique_by=lambda one: one.path,
).map(tuple)


@given(hosts)
def test_they_agree_on_any_box(facts):
    agree(facts)


@given(hosts, nodes)
def test_they_agree_on_any_machine(facts, nodes):
    """Its nodes count, and it has no text to be read."""
    facts = replace(facts, report=(), nodes=nodes, os=OsFacts("Linux"))
    manager = device_manager(facts, Settings(), RECORDS, live=True)
    found = diagnose(ExaminedHost(facts, live=True))
    codes = {one.code for one in found}
    on = {one.device.id: {v.code for v in one.verdicts} for one in manager.candidates()}
    cards = [one for one in manager.candidates() if not one.device.integrated]
    for vendor in {one.device.vendor for one in cards}:
        own = [on[one.device.id] for one in cards if one.device.vendor == vendor]
        assert "VA1401" in codes or not all("VA1401" in said for said in own)
        assert "VA1402" in codes or not any("VA1402" in said for said in own)
    if cards and "VA1401" in codes:
        assert any("VA1401" in on[one.device.id] for one in cards)
    for one in found:
        if one.severity is Severity.ERROR and one.code == "VA1402":
            stopped = stops([one], manager.inventory)
            assert all("VA1402" in on[id_] for id_ in stopped)
    for code in ("VA1301", "VA1107"):
        said = {id_ for id_, theirs in on.items() if code in theirs}
        if any(one.device.vendor == "cuda" for one in manager.candidates()):
            assert code not in codes or said
        assert not said or code in codes or described(manager, said)


def described(manager, ids):
    """Whether descriptors say it, which are the adapters': the doctor has the vendor's file."""
    return {one.device.id for one in manager.recognised() if one.capability} >= ids


@given(hosts, nodes, st.sampled_from(["IMAGE", "vllm/vllm-openai:v0.11-cu129", "cuda:13.0.1"]))
def test_a_container_has_the_list_without_the_place(facts, nodes, image):
    facts = replace(facts, report=(), nodes=nodes)
    inside = device_manager(facts_inside(facts, image, live=True), Settings(), RECORDS, live=True)
    for here, there in zip(
        inside.candidates(), replace(inside, outside=True).candidates(), strict=True
    ):
        assert there.verdicts == tuple(v for v in here.verdicts if v.subject not in PLACE)


@pytest.mark.parametrize(
    ("image", "code"),
    [
        ("vllm/vllm-openai:v0.11.0", None),
        ("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime", None),
        ("vllm/vllm-openai:v0.11.0-cu130", "VA1101"),
        ("nvidia/cuda:13.0.1-devel-ubuntu24.04", "VA1101"),
    ],
)
def test_a_driver_too_old_for_the_image_is_too_old_inside(image, code):
    """The machine's own torch, which this driver does not start, says nothing of the image."""
    facts = replace(parse_report(DRIVER_535), report=())
    inside = device_manager(facts_inside(facts, image, live=True), Settings(), (), live=True)
    said = {v.code for one in replace(inside, outside=True).candidates() for v in one.refusals}
    assert said == ({code} if code else set())
    notes = image_notes("cuda", inside.facts)
    assert notes == () if torch_of(image) else "CUDA 13 (580" in notes[0]


def test_what_a_vendors_file_says_of_bfloat16_its_descriptors_say_too():
    found = 0
    for record in (one for one in RECORDS if one.name in VENDORS):
        for one in load_all(record.manifest):
            device = Device(record.name, 0, one.identity.name, one.identity.arch)
            if one.numerics.native_bfloat16 is not None:
                assert has_no_bfloat16(device) is not one.numerics.native_bfloat16, one.identity
                found += 1
    assert found > 30
