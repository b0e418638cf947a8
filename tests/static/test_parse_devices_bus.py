"""What the bus, the kernel's log and driver files tell of devices; and joining them."""

from __future__ import annotations

import pytest
from device_samples import read, sample

from vllm_adapter.hostfacts.device_facts import Accelerator, Health
from vllm_adapter.hostfacts.facts import DeviceNode
from vllm_adapter.hostfacts.pci_ids import ARCHS
from vllm_adapter_doctor.report.merge import join_accelerators

pytestmark = pytest.mark.static


def lspci(text: str):
    return read("lspci", text)


def test_the_laptop_whose_vga_is_intels():
    facts = lspci(sample("reports/intel/07-lspci-optimus-laptop.txt"))
    (device,) = facts.accelerators
    assert (device.vendor, device.integrated, device.bdf) == ("xpu", True, "0000:00:02.0")
    more = sample("reports/intel/07-lspci-optimus-laptop.txt") + (
        "01:00.0 3D controller: NVIDIA Corporation GM107M [GeForce GTX 960M] (rev a2)\n"
    )
    assert [one.vendor for one in lspci(more).accelerators] == ["xpu", "cuda"]


def test_an_arc_card_with_its_driver():
    facts = lspci(sample("reports/intel/08-lspci-k-arc-a770-i915.txt"))
    (device,) = facts.accelerators
    assert (device.integrated, device.driver) == (False, "i915")
    assert facts.modules == ("i915",)  # xe is only available
    assert facts.pci == ()  # no ids were printed


def test_ids_become_pci_functions():
    facts = lspci(sample("tool_outputs/lspci-mixed.txt"))
    by_bdf = {one.bdf: one for one in facts.pci}
    assert by_bdf["0000:01:00.0"].driver == "nvidia"
    assert by_bdf["0000:01:00.0"].numa_node == 0
    assert by_bdf["0000:06:00.0"].class_code == "0x030200"
    archs = {one.bdf: one.arch for one in facts.accelerators}
    assert archs["0000:01:00.0"] == "sm_89"
    assert archs["0000:1a:00.0"] == "sm_90"  # "Device 2335": an id where a name would be
    assert archs["0000:c3:00.0"] == "gfx942"
    assert archs["0000:c1:00.0"] is None  # d802 does not tell the bin


def test_what_is_no_gpu_is_left_out():
    facts = lspci(sample("tool_outputs/lspci-mixed.txt"))
    places = {one.bdf for one in facts.accelerators}
    assert not places & {"0000:75:00.0", "0000:03:00.0", "0000:01:00.1"}
    assert [one.vendor for one in facts.accelerators].count("ascend") == 1


def test_devices_whose_names_nobody_knows():
    facts = lspci(
        "3b:00.0 Display controller: Device 9999:0a01 (rev 01)\n"
        "00:1e.0 System peripheral: Amazon.com, Inc. Device 7264 (rev 01)\n"
        "00:1f.0 System peripheral: Amazon.com, Inc. NVMe SSD Controller\n"
        "06:00.0 3D controller: Chengdu Haiguang IC Design Co., Ltd. Device 6211 (rev 01)\n"
    )
    assert [one.vendor for one in facts.accelerators] == ["metax", "neuron", "hygon"]


def test_a_device_that_does_not_answer():
    facts = lspci("3b:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 80GB] (rev ff)\n")
    assert "does not answer" in facts.accelerators[0].health.errors[0]


def test_a_camera_is_no_gpu():
    facts = read("inxi", sample("reports/intel/06-inxi-laptop-intel-only.txt"))
    (device,) = facts.accelerators
    assert (device.vendor, device.integrated) == ("xpu", True)
    hybrid = read("inxi", sample("tool_outputs/inxi-hybrid.txt"))
    assert [(one.vendor, one.integrated) for one in hybrid.accelerators] == [
        ("xpu", True),
        ("cuda", False),
    ]
    assert hybrid.drivers[0].version == "535.54.03"


def test_gaudi_cards_that_the_kernel_cannot_use():
    text = sample("reports/other-vendors/03-habanalabs-dmesg-4-cards-unusable.txt")
    devices = read("dmesg", text).accelerators
    bad = {one.index for one in devices if one.health.errors}
    good = {one.index for one in devices if not one.health.errors}
    assert (bad, good) == ({2, 4, 6, 7}, {0, 1, 3})  # hl5 is not mentioned
    assert {one.bdf for one in devices if one.index == 2} == {"0000:1a:00.0"}


def test_errors_of_the_kernels_log():
    facts = read("dmesg", sample("tool_outputs/kernel-log.txt"))
    errors = {one.bdf: one.health.errors for one in facts.accelerators}
    assert errors["0000:3b:00.0"][0].startswith("Xid 79: ")
    assert errors["0000:af:00.0"][0].startswith("Xid 48: ")
    assert errors["0000:03:00.0"] == ("amdgpu: GPU reset begin!",)
    assert {(one.component, one.version) for one in facts.drivers} == {
        ("nvidia", "535.129.03"),
        ("nvml", "545.23.08"),
    }


def test_a_driver_that_does_not_know_the_device():
    text = (
        "[ 9.1] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85)\n"
        "        NVRM: installed in this system is not supported by the\n"
        "        NVRM: NVIDIA 535.129.03 driver release.\n"
    )
    (device,) = read("dmesg", text).accelerators
    assert device.health.errors == ("the loaded NVIDIA driver does not support it",)


def test_everyday_lines_of_a_driver_are_no_device():
    assert read("dmesg", "amdgpu 0000:03:00.0: enabling device\n").accelerators == ()


def test_driver_files():
    facts = read("proc_files", sample("tool_outputs/driver-files.txt"))
    assert {(one.component, one.version) for one in facts.drivers} == {
        ("nvidia", "580.95.05"),
        ("ascend", "24.1.rc1"),
        ("ascend-firmware", "7.5.0.1.129"),
        ("amdgpu", "6.8.5"),
    }
    assert facts.nodes == (
        DeviceNode("/dev/dri/card1", "char", True, True),
        DeviceNode("/dev/dri/renderD128", "char", True, True),
        DeviceNode("/dev/kfd", "char", False, False),
        DeviceNode("/dev/nvidia0", "char", True, True),
    )


def test_the_kernels_own_list_of_nvidia_devices_and_modules():
    facts = read("proc_files", sample("tool_outputs/driver-files.txt"))
    (device,) = facts.accelerators
    assert (device.index, device.bdf, device.name) == (2, "0000:3b:00.0", "NVIDIA L4")
    assert facts.modules == ("ecc", "nvidia", "nvidia_uvm")
    grepped = read("proc_files", "nvidia_uvm           1789952  0\nsome_words 12345 6\n")
    assert grepped.modules == ("nvidia_uvm",)


def test_a_refused_node():
    facts = read("proc_files", sample("reports/errors/48-amd-smi-card-node-permission.txt"))
    assert facts.nodes == (DeviceNode("/dev/dri/card1", "char", False, False, 39),)


def test_a_missing_node_is_no_node():
    text = sample("reports/errors/11-kfd-no-such-file-container.txt")
    assert read("proc_files", text).nodes == ()


def test_archs_have_the_form_of_pci_ids():
    for ids in ARCHS:
        vendor, _, device = ids.partition(":")
        assert len(vendor) == len(device) == 4
        int(vendor + device, 16)


def test_a_mig_instance_is_not_its_gpu():
    gpu = Accelerator("cuda", 0, "nvidia-smi", bdf="0000:3b:00.0")
    instance = Accelerator("cuda", 0, "nvidia-smi", die=0, partition="1g.10gb")
    assert len(join_accelerators((gpu,), (instance,))) == 2


def test_the_bus_joins_by_address_only():
    listed = Accelerator("cuda", 0, "lspci", bdf="0000:3b:00.0", arch="sm_90")
    placed = Accelerator("cuda", 4, "nvidia-smi", bdf="0000:3b:00.0")
    (joined,) = join_accelerators((placed,), (listed,))
    assert (joined.index, joined.arch) == (4, "sm_90")
    other = Accelerator("cuda", 0, "nvidia-smi", bdf="0000:5e:00.0")
    assert len(join_accelerators((other,), (listed,))) == 2


def test_a_list_does_not_count_devices_again():
    unplaced = (Accelerator("cuda", 0, "nvidia-smi -L"), Accelerator("cuda", 1, "nvidia-smi -L"))
    listed = (Accelerator("cuda", 0, "lspci", bdf="0000:3b:00.0"),)
    assert join_accelerators(unplaced, listed) == unplaced


def test_two_chips_and_their_functions():
    chip = Accelerator("ascend", 0, "npu-smi info", die=1, bdf="0000:9f:00.0")
    listed = Accelerator("ascend", 1, "lspci", bdf="0000:9f:00.0", health=Health(status="x"))
    (joined,) = join_accelerators((chip,), (listed,))
    assert joined.health.status == "x"
