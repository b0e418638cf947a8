"""The choice of devices: every rejection has a reason and a next step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from device_boxes import CUDA_OK, GIB, IGPU, chosen, manager, reasons, smi

from vllm_adapter.discovery.records import AdapterRecord, Status
from vllm_adapter.hostfacts.device_facts import DeviceProcess, Driver, Health
from vllm_adapter.hostfacts.facts import (
    Accelerator,
    DeviceNode,
    MemoryFacts,
    OsFacts,
    PciDevice,
    TorchBuild,
)
from vllm_adapter.settings import AdapterFilter, Fallback, Settings
from vllm_adapter_doctor.devices.manager import DeviceManager
from vllm_adapter_doctor.devices.roles import RoleRequest, assign
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

H200 = PciDevice("0000:3b:00.0", "10de", "2335", "0x030200", 1)


def test_alike_devices_are_chosen_together():
    choice = manager(smi(0), smi(1)).choose()
    assert chosen(choice) == ["cuda:0", "cuda:1"] and choice.good
    assert choice.sentence == "2 x NVIDIA H200 of 140 GiB"


@pytest.mark.parametrize(
    ("policy", "cpu", "good", "said"),
    [
        (Fallback.ERROR, False, False, "VA_FALLBACK=error refuses the CPU"),
        (
            Fallback.WARN,
            True,
            False,
            "only the CPU: the report names no accelerator, which proves nothing",
        ),
        (Fallback.ALLOW, True, True, "only the CPU"),
    ],
)
def test_the_cpu_is_chosen_by_policy_alone(policy, cpu, good, said):
    choice = manager(settings=Settings(fallback=policy)).choose()
    assert (choice.cpu, choice.good) == (cpu, good) and said in choice.sentence


def test_the_cpu_named_first_is_meant_and_a_denied_one_is_not_taken():
    named = Settings(adapters=AdapterFilter(frozenset({"cpu"}), order=("cpu",)))
    choice = manager(smi(0), settings=named).choose()
    assert (
        choice.cpu and choice.good and "VA_ADAPTERS allows only cpu" in reasons(choice)["cuda:0"]
    )
    denied = Settings(adapters=AdapterFilter(denied=frozenset({"cpu"})))
    assert not manager(settings=denied).choose().cpu


def test_integrated_graphics_are_not_taken_unless_asked():
    box = manager(pci=(IGPU,), memory=MemoryFacts(16 * GIB))
    choice = box.choose()
    assert choice.cpu and not choice.good
    assert "integrated GPU" in reasons(choice)["xpu:0"] and "16 GiB" in reasons(choice)["xpu:0"]
    (role,) = assign(box, [RoleRequest("light", "xpu", (0,))])
    assert role.faults == ()


def test_a_discrete_gpu_beside_the_processors():
    choice = manager(pci=(IGPU, H200)).choose()
    assert chosen(choice) == ["cuda:0"] and "integrated" in reasons(choice)["xpu:0"]


@pytest.mark.parametrize(
    "health",
    [
        Health(status="Alarm"),
        Health(status="NOT usable", errors=("CPU-CP timeout",)),
        Health(errors=("GPU is lost",)),
        Health(errors=("NOT usable !",)),
    ],
)
def test_an_unhealthy_device_is_not_used_and_its_siblings_are(health):
    choice = manager(smi(0), smi(1, health=health)).choose()
    assert chosen(choice) == ["cuda:0"]
    assert choice.rejected[0].next_step


def test_a_lesser_fault_and_a_holder_are_warnings():
    held = smi(
        0,
        health=Health(status="Warning", errors=("3 corrected errors",)),
        processes=(DeviceProcess(4711, "python", 26 * GIB),),
    )
    (one,) = manager(held).choose().chosen
    assert one.warnings == (
        "process 4711 (python) holds 26.0 GiB of it",
        "its tool says: Warning",
        "3 corrected errors",
    )


@pytest.mark.parametrize(
    ("arch", "archs", "usable"),
    [
        ("sm_21", (), False),
        ("sm_70", (), True),
        ("sm_70", ("sm_75", "sm_80"), False),
        ("sm_89", ("sm_75", "sm_86"), True),
        ("sm_80", ("sm_75", "sm_86"), False),
        ("sm_121", ("sm_90", "sm_120"), True),
        ("sm_130", ("sm_120", "compute_120"), True),
        (None, ("sm_90",), True),
    ],
)
def test_archs_that_torch_has_no_code_for(arch, archs, usable):
    torch = TorchBuild("2.12.0", cuda="12.6", archs=archs)
    choice = manager(smi(0, arch=arch), torch=torch).choose()
    assert bool(choice.chosen) is usable


def test_a_gfx_that_torch_has_no_code_for():
    gpu = Accelerator("rocm", 0, "rocm-smi", arch="gfx908:sramecc+")
    torch = TorchBuild(hip="7.2", archs=("gfx90a", "gfx942"))
    assert (
        "torch was built for gfx90a, gfx942"
        in reasons(manager(gpu, torch=torch).choose())["rocm:0"]
    )


def nodes(*paths, shut=(), group=44):
    return tuple(DeviceNode(p, "char", p not in shut, p not in shut, group) for p in paths)


ROCM_OK = (AdapterRecord("rocm", "d", "1", "p"),)


def test_a_device_of_the_host_that_was_not_passed_through():
    choice = manager(pci=(H200,), live=True, records=CUDA_OK).choose()
    assert "not passed through" in reasons(choice)["cuda:0"]
    assert "vllm-adapter container" in choice.rejected[0].next_step
    here = nodes("/dev/nvidia3", "/dev/nvidiactl")
    assert chosen(manager(pci=(H200,), live=True, records=CUDA_OK, nodes=here).choose())


def test_kfd_without_render_nodes_and_nodes_of_another_group():
    gpu = PciDevice("0000:05:00.0", "1002", "74a1", "0x120000")
    lone = manager(pci=(gpu,), live=True, records=ROCM_OK, nodes=nodes("/dev/kfd"))
    assert "/dev/dri/renderD*" in reasons(lone.choose())["rocm:0"]
    paths = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card0")
    shut = nodes(*paths, shut=("/dev/dri/renderD128",))
    choice = manager(pci=(gpu,), live=True, records=ROCM_OK, nodes=shut).choose()
    assert "/dev/dri/renderD128 may not be opened" in reasons(choice)["rocm:0"]
    assert "group 44" in choice.rejected[0].next_step
    card = nodes(*paths, shut=("/dev/dri/card0",))
    assert chosen(manager(pci=(gpu,), live=True, records=ROCM_OK, nodes=card).choose())


def test_a_report_need_not_tell_of_nodes_and_wsl_has_none():
    assert chosen(manager(pci=(H200,)).choose())
    some = nodes("/dev/dri/card1", shut=("/dev/dri/card1",))
    assert chosen(manager(pci=(H200,), nodes=some).choose())
    wsl = OsFacts("Linux", "5.15.90.1-microsoft-standard-WSL2")
    assert chosen(manager(smi(0), os=wsl, live=True, records=CUDA_OK).choose())


def test_adapters_decide_live_and_are_only_told_on_a_report():
    here = nodes("/dev/nvidia0", "/dev/nvidiactl")
    choice = manager(smi(0), live=True, nodes=here).choose()
    assert reasons(choice) == {"cuda:0": "no adapter for it is installed"}
    assert choice.rejected[0].next_step == "pip install vllm-adapter-cuda"
    broken = (AdapterRecord("cuda", "d", "1", "p", Status.BROKEN, "its import failed", "fix"),)
    choice = manager(smi(0), live=True, nodes=here, records=broken).choose()
    assert reasons(choice) == {"cuda:0": "its adapter is broken: its import failed"}
    (one,) = manager(smi(0)).choose().chosen
    assert one.adapter == "not installed: pip install vllm-adapter-cuda"


def environ(**variables):
    return tuple(sorted(variables.items()))


@pytest.mark.parametrize(
    ("variables", "left"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, ["cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["cuda:0", "cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": "what"}, ["cuda:0", "cuda:1"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["cuda:0", "cuda:1"]),
    ],
)
def test_a_variable_hides_devices(variables, left):
    box = manager(smi(0, uuid="GPU-aaa"), smi(1, uuid="GPU-bbb"), environment=environ(**variables))
    choice = box.choose()
    assert chosen(choice) == left
    assert all("hides it" in why for why in reasons(choice).values())


def test_a_number_of_unlike_devices_is_not_believed_without_an_order():
    box = (smi(0), smi(1, name="NVIDIA H100"))
    unlike = manager(*box, environment=environ(CUDA_VISIBLE_DEVICES="0"))
    assert not any("hides" in why for why in reasons(unlike.choose()).values())
    order = environ(CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    choice = manager(*box, environment=order).choose()
    assert "hides" in reasons(choice)["cuda:1"]


def test_a_mixed_box_serves_its_largest_group_and_says_so():
    choice = manager(
        smi(0, "NVIDIA T400 4GB", 4), smi(1), smi(2), smi(3, "NVIDIA A100", 80)
    ).choose()
    assert chosen(choice) == ["cuda:1", "cuda:2"]
    assert "display's GPU" in reasons(choice)["cuda:0"]
    assert "another kind" in reasons(choice)["cuda:3"]
    assert any("CUDA_DEVICE_ORDER" in note for note in choice.notes)


def test_of_two_vendors_va_adapters_order_counts_before_memory():
    amd = Accelerator("rocm", 0, "rocm-smi", memory_total_bytes=16 * GIB)
    assert chosen(manager(smi(0), amd).choose()) == ["cuda:0"]
    order = Settings(adapters=AdapterFilter(frozenset({"rocm", "cuda"}), order=("rocm", "cuda")))
    choice = manager(smi(0), amd, settings=order).choose()
    assert (
        chosen(choice) == ["rocm:0"]
        and "one process serves one vendor" in reasons(choice)["cuda:0"]
    )


def test_a_required_type_refuses_others():
    choice = manager(smi(0), settings=Settings(require_device="npu")).choose()
    assert "VA_REQUIRE_DEVICE asks for npu" in reasons(choice)["cuda:0"]


def test_an_old_driver_and_a_torch_that_reaches_nothing():
    old = manager(smi(0), drivers=(Driver("nvidia", "390.157", "nvidia-smi"),)).choose()
    assert "390.157 serves no CUDA runtime" in reasons(old)["cuda:0"]
    assert chosen(manager(smi(0), drivers=(Driver("nvidia", "470.82", "nvidia-smi"),)).choose())
    lost = manager(smi(0), torch=TorchBuild("2.12", available=False)).choose()
    assert "no accelerator is available" in lost.notes[0]
    cpu = manager(smi(0), torch=TorchBuild("2.12", local="cpu", available=False)).choose()
    assert "a build for the CPU" in cpu.notes[0]


def test_what_is_not_known_of_a_device_tells_it_from_no_other():
    named, bare = Accelerator("xpu", 0, "xpu-smi", name="B60"), Accelerator("xpu", 1, "xpu-smi")
    choice = manager(named, bare).choose()
    assert choice.sentence == "2 x B60 (1 of them without a name)"


def test_two_of_eight_that_a_job_was_given():
    bus = tuple(PciDevice(f"0000:{n}b:00.0", "10de", "2335", "0x030200") for n in range(1, 9))
    mine = (smi(0, bdf="0000:4b:00.0"), smi(1, bdf="0000:6b:00.0"))
    here = nodes("/dev/nvidia3", "/dev/nvidia5", "/dev/nvidiactl")
    choice = manager(*mine, pci=bus, nodes=here, live=True, records=CUDA_OK).choose()
    assert chosen(choice) == ["cuda:0", "cuda:1"] and len(choice.rejected) == 6
    assert all("/dev/nvidia* does not exist here" in why for why in reasons(choice).values())


def test_some_nodes_and_nothing_that_tells_whose():
    bus = tuple(PciDevice(f"0000:{n}b:00.0", "10de", "2335", "0x030200") for n in range(1, 9))
    here = nodes("/dev/nvidia3", "/dev/nvidia5", "/dev/nvidiactl")
    choice = manager(pci=bus, nodes=here, live=True, records=CUDA_OK).choose()
    assert "2 of the host's devices are passed through" in reasons(choice)["cuda:3"]
    assert "nvidia-smi -L" in choice.rejected[0].next_step


def test_a_missing_uvm_node_is_a_warning():
    here = nodes("/dev/nvidia0", "/dev/nvidiactl")
    (one,) = manager(smi(0), nodes=here, live=True, records=CUDA_OK).choose().chosen
    assert "/dev/nvidia-uvm is not here" in one.warnings[0]
    whole = (*here, *nodes("/dev/nvidia-uvm"))
    (one,) = manager(smi(0), nodes=whole, live=True, records=CUDA_OK).choose().chosen
    assert one.warnings == ()


def test_nodes_of_an_older_driver_count():
    hl = tuple(Accelerator("gaudi", n, "hl-smi") for n in range(2))
    record = (AdapterRecord("gaudi", "d", "1", "p"),)
    box = manager(*hl, nodes=nodes("/dev/hl0", "/dev/hl1"), live=True, records=record)
    assert chosen(box.choose()) == ["gaudi:0", "gaudi:1"]


def test_nodes_that_this_user_may_not_open():
    paths = ("/dev/nvidia3", "/dev/nvidiactl")
    shut = nodes(*paths, shut=("/dev/nvidia3",))
    choice = manager(smi(0), nodes=shut, live=True, records=CUDA_OK).choose()
    assert "/dev/nvidia3 may not be opened" in reasons(choice)["cuda:0"]


def test_variables_that_filter_twice():
    amd = tuple(Accelerator("rocm", n, "rocm-smi") for n in range(2))
    both = environ(ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0")
    choice = manager(*amd, environment=both).choose()
    assert chosen(choice) == ["rocm:0", "rocm:1"]
    assert "ROCR_VISIBLE_DEVICES filters first" in choice.notes[0]


REPORTS = Path(__file__).parents[1] / "data" / "reports"
BOXES = {
    "ascend/01-topo-8x910b3-hccs.txt": ("ascend", 8, 8),
    "ascend/04-npu-smi-8x910b3.txt": ("ascend", 8, 8),
    "ascend/05-npu-smi-1x910b4-id-starts-at-1.txt": ("ascend", 1, 1),
    "ascend/07-collect-env-8x910b2-openeuler.txt": ("ascend", 8, 8),
    "collect-env/11-mi300a-4xapu.txt": ("rocm", 4, 4),
    "collect-env/15-tpu-cpu-torch.txt": (None, 0, 0),
    "collect-env/17-2080ti-8x-sm75.txt": ("cuda", 8, 8),
    "collect-env/19-sglang-check-env-mi300-generic-name.txt": ("rocm", 8, 8),
    "collect-env/21-sglang-check-env-wsl-3-of-4-gpus.txt": ("cuda", 4, 4),
    "intel/01-xpu-smi-topology-2xmax1100-xl24.txt": ("xpu", 2, 2),
    "intel/03-xpu-smi-topology-8xb60-two-sockets-partial.txt": ("xpu", 8, 8),
    "intel/05-torch-collect-env-8xb60-xpu.txt": ("xpu", 8, 8),
    "intel/06-inxi-laptop-intel-only.txt": ("xpu", 1, 0),
    "intel/08-lspci-k-arc-a770-i915.txt": ("xpu", 1, 1),
    "nvidia-smi/02-wsl-smi-535-driver-537.txt": ("cuda", 1, 1),
    "nvidia-smi/05-pre-2019-header-without-cuda-version.txt": ("cuda", 2, 0),
    "numa-sysfs/04-nvidia-smi-xml-driver-390-fermi.txt": ("cuda", 1, 0),
    "numa-sysfs/05-nvidia-smi-q-log-960m.txt": ("cuda", 1, 0),
    "other-vendors/01-hl-smi-8xgaudi2-one-busy.txt": ("gaudi", 8, 8),
    "other-vendors/03-habanalabs-dmesg-4-cards-unusable.txt": ("gaudi", 7, 3),
    "other-vendors/04-mthreads-topo-table.txt": ("musa", 8, 8),
    "other-vendors/06-metax-c500-torch-cuda-true-platform-probe.txt": ("metax", 1, 1),
    "topology-amd/01-8gcd-mi250x-rocm-smi-showtopo-weights.txt": ("rocm", 8, 8),
    "topology-amd/08-4xpcie-weight52-numa-permuted.txt": ("rocm", 4, 4),
    "topology-nvidia/21-10x4080-two-sockets.txt": ("cuda", 10, 10),
    "topology-nvidia/29-2-of-8-h20-visible.txt": ("cuda", 2, 2),
}


@pytest.mark.parametrize("name", BOXES)
def test_devices_of_real_reports(name):
    vendor, count, usable = BOXES[name]
    box = DeviceManager(parse_report((REPORTS / name).read_bytes()), Settings())
    found = box.inventory.devices
    assert len(found) == count and {device.vendor for device in found} <= {vendor}
    assert len(box.choose().chosen) == usable


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 1.0])
def test_any_part_of_a_report_gives_a_choice(share):
    for path in sorted(REPORTS.glob("*/*.txt")):
        raw = path.read_bytes()
        box = DeviceManager(parse_report(raw[: int(len(raw) * share)]), Settings())
        choice = box.choose()
        assert choice.sentence and all(one.reason for one in choice.rejected)
        json.dumps([one.to_json() for one in box.candidates()] + [choice.to_json()])


def test_mig_without_an_instance_serves_nothing():
    choice = manager(smi(0, partition="MIG"), smi(1)).choose()
    assert chosen(choice) == ["cuda:1"] and "MIG mode is on" in reasons(choice)["cuda:0"]
    split = manager(smi(0, partition="MIG"), smi(0, uuid="MIG-1", gib=20, partition="3g.20gb"))
    assert [d.uuid for d in split.inventory.devices] == ["MIG-1"]
    assert chosen(split.choose()) == ["cuda:0"]


def test_kinds_of_unknown_memory_are_said_to_be():
    other = Accelerator("rocm", 0, "rocm-smi")
    bare = Accelerator("cuda", 0, "nvidia-smi")
    choice = manager(other, bare).choose()
    assert chosen(choice) == ["rocm:0"] and "nothing reports their memory" in choice.sentence
    more = manager(other, bare, Accelerator("cuda", 1, "nvidia-smi")).choose()
    assert chosen(more) == ["cuda:0", "cuda:1"] and "of which there are most" in more.sentence
