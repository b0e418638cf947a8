"""Layouts of newer releases of tools and dumps; each text is made up, each form real."""

from __future__ import annotations

import pytest
from parsed import versions

from vllm_adapter_doctor.devices.inventory import inventory
from vllm_adapter_doctor.report.read import parse_report

pytestmark = pytest.mark.static

METAX = """\
+---------------------------------------------------------------------------------+
| MX-SMI 2.3.1                       Kernel Mode Driver Version: 3.5.0            |
| MACA Version: 3.4.0.2              BIOS Version: 1.31.0.0                       |
|------------------+-----------------+---------------------+----------------------|
| Board       Name | GPU   Persist-M | Bus-id              | GPU-Util      sGPU-M |
| Pwr:Usage/Cap    | Temp       Perf | Memory-Usage        | GPU-State            |
|==================+=================+=====================+======================|
| 0     MetaX N260 | 0           Off | 0000:1b:00.0        | 3%          Disabled |
| 41W / 225W       | 38C          P9 | 1100/65536 MiB      | Available            |
+------------------+-----------------+---------------------+----------------------+
| 0     MetaX N260 | 1            On | 0000:1c:00.0        | 0%          Disabled |
| 40W / 225W       | 37C          P9 | 826/65536 MiB       | Available            |
+------------------+-----------------+---------------------+----------------------+
"""


def test_boards_in_a_column_of_their_own() -> None:
    found = parse_report(METAX).accelerators
    assert [(one.index, one.name, one.bdf) for one in found] == [
        (0, "MetaX N260", "0000:1b:00.0"),
        (1, "MetaX N260", "0000:1c:00.0"),
    ]
    assert {one.memory_total_bytes for one in found} == {65536 << 20}
    assert found[0].health.utilization_percent == 3.0


ENV = """\
PyTorch version: 2.12.0+cu130
CUDA used to build PyTorch: 13.0
OS: Ubuntu 24.04.3 LTS (x86_64)
Python platform: Linux-6.8.0-{kernel}-x86_64-with-glibc2.39
Is CUDA available: True
Nvidia driver version: {driver}
"""


@pytest.mark.parametrize(
    ("kernel", "driver", "component"),
    [
        ("90-generic", "595.80", "nvidia"),
        ("90-generic", "560.94", "nvidia"),
        ("90-generic", "595.58.03", "nvidia"),
        ("microsoft-standard-WSL2", "595.80", "windows"),
        ("microsoft-standard-WSL2", "560.94", "windows"),
        ("microsoft-standard-WSL2", "471.11", "nvidia"),
    ],
)
def test_two_numbers_are_windows_under_wsl_alone(kernel: str, driver: str, component: str) -> None:
    text = ENV.format(kernel=kernel, driver=driver)
    assert versions(parse_report(text)).get(component) == driver


ROCMINFO = """\
ROCk module is loaded
*******
Agent 1
*******
  Name:                    gfx1100
  Uuid:                    GPU-XX
  Marketing Name:          Radeon RX 7900 XTX
  Device Type:             GPU
  Compute Unit:            96
*******
Agent 2
*******
  Name:                    gfx1100
  Uuid:                    GPU-XX
  Marketing Name:          Radeon RX 7900 XTX
  Device Type:             GPU
  Compute Unit:            96
"""
MASKED = "\n".join(
    f"GPU {index}: NVIDIA L20 (UUID: GPU-00000000-0000-0000-0000-000000000000)"
    for index in range(4)
)


@pytest.mark.parametrize(("text", "count"), [(ROCMINFO, 2), (MASKED + "\n", 4)])
def test_an_id_that_is_none_makes_no_two_devices_one(text: str, count: int) -> None:
    assert len(inventory(parse_report(text)).devices) == count


PARTITIONS = "".join(
    f"GPU: {index}\n    BDF: 0000:1b:00.0\n    UUID: 3cff75a0-0000-1000-8021-a2b4c6d8e0f1\n"
    f"    NODE_ID: {index + 2}\n    PARTITION_ID: {index}\n\n"
    for index in range(8)
)


def test_partitions_at_one_bus_address_are_devices_each() -> None:
    assert len(inventory(parse_report(PARTITIONS)).devices) == 8


OFF_THE_BUS = """\
[   88.100000] NVRM: The NVIDIA GPU 0000:41:00.0
               NVRM: (PCI ID: 10de:2335) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
"""


def test_a_sentence_of_the_kernel_over_three_lines() -> None:
    (device,) = parse_report(OFF_THE_BUS).accelerators
    assert device.bdf == "0000:41:00.0"
    assert device.health.errors == ("the GPU has fallen off the bus",)


JSON_DRIVER = """\
{"card0": {"Device Name": "AMD Radeon PRO W7900", "PCI Bus": "0000:83:00.0"},
 "system": {"Driver version": "6.10.5"}}
"""


def test_the_driver_in_json_of_rocm_smi() -> None:
    assert versions(parse_report(JSON_DRIVER)) == {"amdgpu": "6.10.5"}


JOINED = (
    "Env: PyTorch version: 2.9.1+cu128 Is debug build: False CUDA used to build PyTorch: 12.8 "
    "ROCM used to build PyTorch: N/A OS: Debian GNU/Linux 12 (bookworm) (x86_64) Libc version: "
    "glibc-2.36 Python version: 3.12.4 (main) [GCC 12.2.0] (64-bit runtime) Is CUDA available: "
    "True GPU models and configuration: GPU 0: NVIDIA A40 GPU 1: NVIDIA A40 Nvidia driver "
    "version: 570.10.01 cuDNN version: Could not collect CPU: Architecture: x86_64 CPU(s): 32 "
    "On-line CPU(s) list: 0-31 Model name: AMD EPYC 7343 16-Core Processor CPU family: 25 "
    "Thread(s) per core: 1 Core(s) per socket: 16 Socket(s): 2 NUMA node(s): 2 NUMA node0 "
    "CPU(s): 0-15 NUMA node1 CPU(s): 16-31 Versions of relevant libraries: [pip3] torch==2.9.1 "
    "[pip3] triton==3.5.1 vLLM Version: 0.12.0 GPU Topology: GPU0 GPU1 CPU Affinity NUMA "
    "Affinity GPU NUMA ID GPU0 X NV4 0-15 0 N/A GPU1 NV4 X 16-31 1 N/A Legend: X = Self"
)


def test_a_dump_that_a_page_has_joined_to_one_line() -> None:
    facts = parse_report(JOINED + "\n")
    assert [(one.name, one.numa_nodes) for one in facts.accelerators] == [
        ("NVIDIA A40", (0,)),
        ("NVIDIA A40", (1,)),
    ]
    assert [node.cpus for node in facts.numa] == [tuple(range(16)), tuple(range(16, 32))]
    assert facts.cpu.model == "AMD EPYC 7343 16-Core Processor"
    assert (facts.package("triton"), facts.python) == ("3.5.1", "3.12.4")
    assert {link.text for matrix in facts.links for link in matrix.links} == {"NV4"}


@pytest.mark.parametrize("length", range(200, len(JOINED), 11))
def test_a_joined_dump_that_is_cut(length: int) -> None:
    whole, cut = parse_report(JOINED + "\n"), parse_report(JOINED[:length])
    assert cut.cpu.model in (None, whole.cpu.model)
    assert {one.name for one in cut.accelerators} <= {"NVIDIA A40"}
    assert {node.cpus for node in cut.numa} <= {node.cpus for node in whole.numa}
    assert {one.numa_nodes for one in cut.accelerators} <= {(), (0,), (1,)}
    assert set(versions(cut).items()) <= set(versions(whole).items())


def test_prose_that_names_a_key_stays_one_line() -> None:
    text = "The PyTorch version: 2.9, and OS: Linux are in the report of GPU 0: it is fine\n"
    assert [line.text for line in parse_report(text).report] == [text.rstrip()]


WINDOWS = """\
PyTorch version: 2.13.0+cpu
OS: Microsoft Windows 11 Pro (10.0.26100 64-bit)
Python platform: Windows-11-10.0.26100-SP0
CPU:
Name: AMD Ryzen 9 7950X 16-Core Processor
Manufacturer: AuthenticAMD
Architecture: 9
"""


def test_windows_has_numbers_for_architectures() -> None:
    facts = parse_report(WINDOWS)
    assert (facts.os.name, facts.os.machine) == ("Windows", None)
    assert facts.cpu.model == "AMD Ryzen 9 7950X 16-Core Processor"


def test_a_key_with_two_colons() -> None:
    text = "CUDA available: True\nCUDA Driver Version: 575.10.01\nHypervisor vendor:: KVM\n"
    assert parse_report(text).os.environment == ("hypervisor:KVM", "vm")


@pytest.mark.parametrize(("driver", "wsl"), [("551.61", True), ("595.80", False)])
def test_a_driver_of_two_numbers_is_no_wsl_since_595(driver: str, wsl: bool) -> None:
    text = f"Hypervisor vendor: Microsoft\nCUDA Driver Version: {driver}\n"
    assert ("wsl2" in parse_report(text).os.environment) is wsl


NEWER_XPU = """\
Collecting environment information...
==============================
        System Info
==============================
OS                           : Ubuntu 24.04.3 LTS (x86_64)
Libc version                 : glibc-2.39

==============================
       PyTorch Info
==============================
PyTorch version              : 2.11.0+xpu
CUDA used to build PyTorch   : None
ROCM used to build PyTorch   : N/A

==============================
      Intel XPU / GPU Info
==============================
Is XPU available             : True
XPU runtime version          : 20250302
Intel GPU models             :
GPU 0: Intel(R) Arc(TM) Pro B70 Graphics
GPU 1: Intel(R) Arc(TM) Pro B70 Graphics

--Compile time--
oneAPI compiler version      : 2025.3.1
oneCCL version               : 2021.17.1-2

--Runtime--
Intel Graphics Compiler (IGC): 2.24.8
Level Zero loader version    : 1.27.0
Level Zero driver version    : {driver}
vLLM XPU kernels version     : {kernels}
==============================
          CPU Info
==============================
Architecture:                         x86_64
"""


def test_a_dump_with_a_section_of_intel():
    facts = parse_report(NEWER_XPU.format(driver="26.01.36711.4-1~24.04", kernels="0.1.5"))
    assert [one.vendor for one in facts.accelerators] == ["xpu", "xpu"]
    assert facts.torch is not None and facts.torch.xpu == "20250302" and facts.torch.available
    assert [(one.component, one.version) for one in facts.drivers] == [
        ("level-zero", "26.01.36711.4-1")
    ]
    assert ("vllm-xpu-kernels", "0.1.5") in facts.packages


@pytest.mark.parametrize("nothing", ["Could not collect", "N/A", "No XPU"])
def test_a_section_of_intel_that_could_not_be_collected(nothing):
    facts = parse_report(NEWER_XPU.format(driver=nothing, kernels=nothing))
    assert not facts.drivers
    assert not any("xpu" in name for name, _ in facts.packages)


@pytest.mark.parametrize("head", ["IOMMU Group 7: ", "IOMMU Group 7 ", "IOMMU group: 7  "])
def test_lspci_by_iommu_groups(head):
    text = (
        f"{head}b1:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] "
        "[10de:20f1] (rev a1) (driver: vfio-pci)\n"
        f"{head}b1:00.1 Bridge [0680]: Intel Corporation Device [8086:09a2] (rev 04)\n"
    )
    facts = parse_report(text)
    (gpu,) = facts.accelerators
    assert (gpu.vendor, gpu.bdf, gpu.driver) == ("cuda", "0000:b1:00.0", "vfio-pci")
    assert gpu.name == "NVIDIA Corporation GA100 [A100 PCIe 40GB]"
    assert {one.bdf for one in facts.pci} >= {"0000:b1:00.0"}


ROCM_ROWS = """\
Device  Node  IDs              Temp        Power     Partitions          SCLK     MCLK     \
Fan  Perf    PwrCap   VRAM%  GPU%
              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)
====================================================================================
0       1     0x75a3,   11021  48.0°C      251.0W    NPS2, DPX, 0        {tail0}
1       2     0x75a3,   30588  N/A         N/A       N/A, N/A, 1         N/A  N/A  0%  n/a  N/A  \
0%  N/A
2       3     0x75a3,   52190  47.0°C      250.0W    NPS2, DPX, 0        {tail0}
3       4     0x75a3,   60417  N/A         N/A       N/A, N/A, 1         N/A  N/A  0%  n/a  N/A  \
0%  0%
====================================================================================
""".replace("{tail0}", "150Mhz  900Mhz  0%  auto  1400.0W  0%  3%")


def test_partitions_whose_readings_are_in_the_first_ones_row():
    facts = parse_report(ROCM_ROWS)
    assert [one.index for one in facts.accelerators] == [0, 1, 2, 3]
    assert [one.die for one in facts.accelerators] == [0, 1, 0, 1]
    assert {one.partition for one in facts.accelerators} == {"DPX/NPS2"}
    assert [one.health.power_w for one in facts.accelerators] == [251.0, None, 250.0, None]
    assert [one.health.utilization_percent for one in facts.accelerators] == [3.0, None, 3.0, 0.0]
    assert len(inventory(facts).devices) == 4


def test_a_device_without_any_sensor_is_counted():
    text = (
        "GPU  Temp (DieEdge)  AvgPwr  SCLK  MCLK  Fan  Perf  PwrCap  VRAM%  GPU%\n"
        "0    41.0c           12.0W   0Mhz  96Mhz  0%   auto  120.0W  4%    0%\n"
        "1    N/A             N/A     None  None   0%   unknown  Unsupported  Unsupported  N/A\n"
        "======================== End of ROCm SMI Log ========================\n"
    )
    first, second = parse_report(text).accelerators
    assert (first.index, second.index) == (0, 1)
    assert second.health.temperature_c is None and second.partition is None


def test_the_display_of_a_clouds_virtual_machine_is_no_accelerator():
    display = "00:04.0 VGA compatible controller: {maker} Device 1111\n"
    for maker in ("Amazon.com, Inc.", "Google, Inc."):
        text = (
            display.format(maker=maker) + "a0:1c.0 3D controller: NVIDIA Corporation Device 2330"
        )
        assert [one.vendor for one in parse_report(text + " (rev a1)\n").accelerators] == ["cuda"]
    chip = "cc:00.0 System peripheral: Amazon.com, Inc. NeuronDevice (Trainium2)\n"
    chips = chip + "cd:00.0 Processing accelerators: Amazon.com, Inc. Device 7364 (rev 01)\n"
    assert {one.vendor for one in parse_report(chips).accelerators} == {"neuron"}
