"""Findings that need a second look: one fault is said once, and nothing that nobody compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.contract.finding import Finding, Severity
from vllm_adapter.hostfacts.device_facts import DeviceProcess, Health
from vllm_adapter.hostfacts.facts import Accelerator, CpuSet, HostFacts, NumaNode
from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.findings.diagnose import diagnose
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

GIB = 1 << 30


def of(text: str, code: str) -> list[Finding]:
    return [one for one in diagnose(ExaminedHost(parse_report(text))) if one.code == code]


def among(*devices: Accelerator, code: str, live: bool = False) -> list[Finding]:
    box = ExaminedHost(HostFacts(accelerators=devices), live=live)
    return [one for one in diagnose(box) if one.code == code]


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\n"
LIBRARY = "NVML library version: 560.35\n"


def module(version: str) -> str:
    head = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}"
    return f"{head}  Tue Mar  5 22:42:15 UTC 2024\nGCC version:  gcc version 12.3.0\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (MISMATCH + LIBRARY + module("550.54.15"), "upgraded under it"),
        (MISMATCH + LIBRARY + module("570.86.15"), "the libraries are the older ones"),
        (MISMATCH + LIBRARY, "of two releases"),
        (MISMATCH + MISMATCH, "of two releases"),
        (MISMATCH + "Error 803: system has unsupported display driver / cuda driver combination\n",
         "of two releases"),
    ],
)  # fmt: skip
def test_a_mismatch_is_one_finding_that_claims_what_was_compared(text, cause):
    (one,) = of(text, "VA1103")
    assert cause in one.cause
    assert any("mismatch" in each.text for each in one.evidence)
    if cause == "of two releases":
        assert "older" not in one.cause


def mig(die: int | None, used: int, *held: int) -> Accelerator:
    return Accelerator(
        "cuda",
        0,
        "nvidia-smi",
        die=die,
        memory_total_bytes=(80 if die is None else 40) * GIB,
        memory_used_bytes=used,
        partition="MIG" if die is None else f"GI {die} CI 0",
        processes=tuple(DeviceProcess(7 + i, "python", size) for i, size in enumerate(held)),
    )


def test_parts_of_one_gpu_are_held_once_and_only_by_somebody():
    assert not among(mig(None, 50 * GIB), mig(1, 39 * GIB), mig(2, 0), code="VA1703")
    assert not among(mig(None, 0), mig(1, 0), mig(2, 0), code="VA1703", live=True)
    held = mig(None, 0, 38 * GIB), mig(1, 0, 38 * GIB), mig(2, 0)
    (one,) = among(*held, code="VA1703", live=True)
    assert "38.0 GiB" in one.cause


@given(st.integers(0, GIB - 1), st.integers(2, 200), st.booleans())
def test_little_memory_is_not_said(used, total, live):
    held = (DeviceProcess(9, "Xorg", used),)
    device = Accelerator(
        "cuda",
        0,
        "nvidia-smi",
        memory_total_bytes=total * GIB,
        memory_used_bytes=used,
        processes=held,
    )
    assert not among(device, code="VA1703", live=live)


def affinity(cpus: str, node: int, count: int = 8) -> str:
    head = "\t" + "\t".join(f"GPU{i}" for i in range(count)) + "\tCPU Affinity\tNUMA Affinity"
    rows = [
        f"GPU{i}\t"
        + "\t".join("X" if i == j else "NODE" for j in range(count))
        + f"\t{cpus}\t{node}"
        for i in range(count)
    ]
    return "\n".join([head, *rows, "", "Legend:", "", "  X    = Self", ""])


@pytest.mark.parametrize(
    ("cpus", "node", "before", "severity"),
    [
        ("20-39", 1, "", Severity.WARNING),
        ("64-127", 1, "", Severity.WARNING),
        ("24-47,72-95", 1, "", Severity.NOTE),
        ("60-79", 3, "", Severity.NOTE),
        ("32-63", 1, "NUMA node(s): 2\nNUMA node0 CPU(s): 0-31\nNUMA node1 CPU(s): 32-63\n",
         Severity.NOTE),
    ],
)  # fmt: skip
def test_all_devices_on_one_node_is_a_note_without_a_hint(cpus, node, before, severity):
    (one,) = of(before + affinity(cpus, node), "VA1807")
    assert one.severity is severity


def test_all_devices_on_one_node_within_a_cpu_set_is_a_finding():
    facts = parse_report(
        "NUMA node(s): 2\nNUMA node0 CPU(s): 0-31\nNUMA node1 CPU(s): 32-63\n"
        + affinity("32-63", 1)
    )
    assert facts.numa == (NumaNode(0, tuple(range(32))), NumaNode(1, tuple(range(32, 64))))
    within = replace(facts, cpuset=CpuSet(tuple(range(32, 64)), (1,)))
    (one,) = [one for one in diagnose(ExaminedHost(within)) if one.code == "VA1807"]
    assert one.severity is Severity.WARNING


def test_an_unhealthy_fabric_is_one_finding_of_all_its_devices():
    def device(index: int, *errors: str) -> Accelerator:
        return Accelerator("cuda", index, "nvidia-smi -q", health=Health(errors=errors))

    bad = "of its NVLink fabric the tool says summary: Unhealthy"
    (one,) = among(device(0, bad), device(1), device(2, bad), code="VA1808")
    assert "device 0" in one.cause and "device 2" in one.cause and "device 1" not in one.cause
    assert one.severity is Severity.WARNING
    assert not among(device(0), device(1), code="VA1808")


def test_a_gsp_timeout_with_its_number_is_said_once():
    text = (
        "[ 9.1] NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=x, Timeout after 6s of waiting for "
        "RPC response from GPU0 GSP! Expected function 76\n"
        "[ 9.2] NVRM: rpcRecvPoll timedout for fn 76!\n"
    )
    assert len(of(text, "VA1709")) == 1


REFUSED = "n1:7:9 [0] NCCL WARN socketStartConnect: Connect to 10.1.0.5<51234> failed : refused"
SAMPLES = (
    "You may see the following output in the log:\n\n```text\n{}\n```\n",
    "Example output:\n\n{}\n",
    "### Sample log\n\n```\n{}\n```\n",
    "The log of a rank will look like this:\n{}\n",
    ".. code-block:: console\n\n   {}\n\nNext.\n",
    '??? console "Logs"\n    {}\n',
    "If the port has no link, the sample result is:\n\n{}\n",
)


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_sample_of_a_document_did_not_happen(sample):
    assert not of(sample.format(REFUSED), "VA1902")


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_follows_the_sample_did_happen(sample):
    assert of(sample.format("all is well") + "\n" + REFUSED + "\n", "VA1902")


@pytest.mark.parametrize(
    "said",
    [
        "I get the following output:\n\n```text\n{}\n```\n",
        "Our log, for example:\n\n{}\n",
        "### Output\n\n{}\n",
        "Error message:\n{}\n",
        "Actual output:\n{}\n",
        "I start two nodes and it hangs.\n\nExample output:\n\n{}\n",
        "### Your current environment\n\nPyTorch version: 2.9.0\n\nSample log:\n```\n{}\n```\n",
    ],
)
def test_what_somebody_shows_of_their_own_machine_happened(said):
    assert of(said.format(REFUSED), "VA1902")


LISTED = "GPU 0: {} (UUID: GPU-5d3a1b2c-1111-2222-3333-444455556666)\n"
NAMED = (
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
    "Your {} GPU has compute capability 7.5.\n"
)


@pytest.mark.parametrize(
    ("listed", "named", "count"),
    [
        ("Tesla T4", "Tesla T4", 1),
        ("NVIDIA TITAN RTX", "TITAN RTX", 1),
        ("GeForce RTX 208...", "NVIDIA GeForce RTX 2080 Ti", 1),
        ("NVIDIA A10", "Tesla T4", 1),
    ],
)
def test_a_device_that_an_error_names_is_counted_once(listed, named, count):
    both = LISTED.format(listed) + "\n" + NAMED.format(named)
    assert len(inventory(parse_report(both)).devices) == count
    assert len(inventory(parse_report(NAMED.format(named))).devices) == 1


def test_a_device_that_lspci_lists_is_not_counted_again():
    bus = "01:00.0 3D controller: NVIDIA Corporation TU104GL [Tesla T4] (rev a1)\n"
    (one,) = inventory(parse_report("$ lspci\n" + bus + "\n" + NAMED.format("Tesla T4"))).devices
    assert one.bdf == "0000:01:00.0"
