"""Environment reports: collect_env in its layouts, sglang's check_env, lscpu and numactl."""

from __future__ import annotations

import pytest
from parsed import REPORTS, of, versions

from vllm_adapter.hostfacts.facts import HostFacts, OsFacts, TorchBuild
from vllm_adapter_doctor.report.parsers import collect_env, lscpu, numactl, pip_list, sglang_env
from vllm_adapter_doctor.report.parsers._common import cpu_list
from vllm_adapter_doctor.report.read import parse_report
from vllm_adapter_doctor.report.text import clean

pytestmark = pytest.mark.static


def read(name: str) -> HostFacts:
    """The facts in the only case whose path begins so."""
    (path,) = REPORTS.glob(f"{name}*.txt")
    return parse_report(path.read_bytes())


SYSTEMS = {
    "collect-env/01": ("5.15.0-1022-aws", "glibc 2.31", ("aws", "hypervisor:KVM", "vm")),
    "collect-env/03": (
        "5.15.167.4-microsoft-standard-WSL2",
        "glibc 2.39",
        ("hypervisor:Microsoft", "wsl2"),
    ),
    "collect-env/06": ("6.10.6-200.fc40.x86_64", "glibc 2.39", ()),
    "collect-env/11": ("4.18.0-553.47.1.1toss.t4.x86_64", "glibc 2.35", ()),
    "collect-env/12": (
        "5.14.0-503.23.1.el9_5.ppc64le",
        "glibc 2.34",
        ("hypervisor:pHyp", "vm"),
    ),
    "collect-env/13": (None, None, ()),
    "collect-env/21": (None, None, ("hypervisor:Microsoft", "wsl2")),
    "collect-env/23": ("5.10.25-nvidia-gpu", "glibc 2.35", ("hypervisor:KVM", "vm")),
    "collect-env/24": (
        "5.14.0-427.70.1.el9_4.x86_64",
        "glibc 2.34",
        ("azure", "hypervisor:Microsoft", "vm"),
    ),
    "ascend/07": ("4.19.90-2102.2.0.0068.3.ctl2.aarch64", "glibc 2.34", ()),
}


@pytest.mark.parametrize(("case", "said"), SYSTEMS.items(), ids=SYSTEMS)
def test_the_system_and_where_it_runs(
    case: str, said: tuple[str | None, str | None, tuple[str, ...]]
) -> None:
    found = read(case).os
    assert (found.release, found.libc, found.environment) == said


TORCHES = {
    "collect-env/01": TorchBuild("2.3.1+cu121", "cu121", "12.1", available=False),
    "collect-env/03": TorchBuild("2.5.1+cpu", "cpu", available=False),
    "collect-env/04": TorchBuild(
        "2.4.0+rocm6.3.4.git7cecbf6d",
        "rocm6.3.4.git7cecbf6d",
        hip="6.3.42134-a9a80e791",
        available=True,
    ),
    "collect-env/09": TorchBuild("2.5.1+cxx11.abi", "cxx11.abi"),  # nobody asked torch.xpu
    "collect-env/15": TorchBuild("2.6.0.dev20241126+cpu", "cpu"),  # nobody asked torch_xla
    "collect-env/19": TorchBuild(
        "2.6.0a0+git8d4926e", "git8d4926e", available=True, visible_devices=8
    ),
    "collect-env/21": TorchBuild("2.6.0+cu124", "cu124", available=True, visible_devices=3),
    "collect-env/23": TorchBuild("2.4.0+cpu", "cpu", available=False),
    "collect-env/24": TorchBuild("2.7.0", hip="6.3.42134-a9a80e791", available=True),
    "errors/46": None,
    "intel/05": TorchBuild(xpu="20260100", available=True),
    "ascend/07": TorchBuild("2.5.1"),
}


@pytest.mark.parametrize(("case", "torch"), TORCHES.items(), ids=TORCHES)
def test_the_torch_build(case: str, torch: TorchBuild | None) -> None:
    assert read(case).torch == torch


DEVICES = {
    "collect-env/01": ("nvidia-smi -L", "cuda", 1, "NVIDIA A10G", None),
    "collect-env/04": ("torch", "rocm", 1, "AMD Radeon RX 7900 XT", "gfx1100"),
    "collect-env/11": ("torch", "rocm", 1, "AMD Instinct MI300A", "gfx942"),
    "collect-env/17": ("nvidia-smi -L", "cuda", 8, "NVIDIA GeForce RTX 2080 Ti", None),
    "collect-env/19": ("torch", "rocm", 8, "AMD Radeon Graphics", "gfx942"),
    "collect-env/21": ("torch", "cuda", 3, "NVIDIA GeForce RTX 4090", "sm_89"),
    "errors/46": ("nvidia-smi -L", "cuda", 4, "NVIDIA H100 80GB HBM3", None),
    "errors/16": ("torch", "cuda", 2, "NVIDIA A10", "sm_86"),
    "errors/18": ("nvidia-smi -L", "cuda", 1, "Tesla V100-PCIE-32GB", None),
}


@pytest.mark.parametrize(("case", "said"), DEVICES.items(), ids=DEVICES)
def test_the_devices(case: str, said: tuple[str, str, int, str, str | None]) -> None:
    source, vendor, count, name, arch = said
    assert of(read(case), source) == [(vendor, index, name, arch) for index in range(count)]


@pytest.mark.parametrize("number", ["03", "06", "07", "09", "12", "13", "15", "23"])
def test_no_device_where_none_is_named(number: str) -> None:
    assert read(f"collect-env/{number}").accelerators == ()


def test_drivers_have_the_name_of_their_key() -> None:
    assert versions(read("collect-env/01")) == {
        "nvidia": "510.47.03",
        "cuda-toolkit": "11.4.152",
        "cuda": "11.6",
    }
    assert versions(read("collect-env/03")) == {}
    assert versions(read("collect-env/19")) == {
        "amdgpu": "6.10.5",
        "rocm": "6.3.42131-fa1d09cbd",
    }
    assert versions(read("collect-env/21")) == {"windows": "560.94", "cuda-toolkit": "12.6.85"}
    assert versions(read("intel/05"))["level-zero"] == "1.15.38308+1"
    ascend = read("ascend/07")
    assert versions(ascend)["cann"] == "8.0.0"
    assert ascend.package("vllm-ascend") == "0.7.3rc2.dev9+g7fbdd01.d20250327"


def test_unknown_and_absent_are_told_apart() -> None:
    asked = parse_report(
        "CUDA used to build PyTorch: 12.4\nNvidia driver version: Could not collect"
    )
    assert asked.where("drivers.nvidia") == "collect_env: Nvidia driver version"
    none = parse_report("CUDA used to build PyTorch: None\nNvidia driver version: No CUDA")
    assert none.where("drivers.nvidia") is None


def test_cpus() -> None:
    cut = read("errors/46").cpu
    assert (cut.logical, cut.offline) == (255, (128,))
    kunpeng = read("ascend/07")
    assert (kunpeng.cpu.cores, kunpeng.cpu.sockets, len(kunpeng.numa)) == (192, None, 4)
    power = read("collect-env/12").cpu
    assert (power.model, power.cores) == ("POWER10 (architected), altivec supported", 40)
    assert read("collect-env/13").cpu.model == "Apple M1 Max"
    apu = read("collect-env/11")
    assert apu.numa[2].cpus == (*range(48, 72), *range(144, 168))


def test_intel_onboard_and_detected() -> None:
    devices = read("intel/05").accelerators
    assert [one.index for one in devices] == list(range(8))
    assert {one.name for one in devices} == {"Intel(R) Arc(TM) Pro B60 Graphics"}
    assert devices[0].memory_total_bytes == 24480 << 20
    assert devices[0].uuid is None  # zeros: taken out before the paste


def test_a_broken_collector_still_tells_versions() -> None:
    found = read("ascend/09")
    assert found.torch == TorchBuild("2.7.1")
    assert found.package("torch-npu") == "2.7.1rc1"
    assert found.package("vllm") == "0.11.0"


@pytest.mark.parametrize(
    ("name", "torch", "vendor"),
    [
        ("MetaX C500", "2.8.0+metax3.7.0.7", "metax"),
        ("NVIDIA H20", "2.8.0+cu128", "cuda"),
        ("K100_AI (gfx928:sramecc+:xnack-)", "2.4.1+das.opt1.dtk25041", "hygon"),
        ("Iluvatar BI-V150", "2.4.1+corex.4.2.0", "iluvatar"),
        ("AMD Instinct MI300X (gfx942:sramecc+:xnack-)", "2.8.0+rocm6.4", "rocm"),
    ],
)
def test_the_maker_is_known_by_name_and_build(name: str, torch: str, vendor: str) -> None:
    listed = f"\nGPU 0: {name}" if "gfx" not in name else f" {name}"
    text = f"PyTorch version: {torch}\nIs CUDA available: True\nGPU models and configuration:"
    (device,) = collect_env.parse(clean(text + listed)).accelerators
    assert device.vendor == vendor


def test_a_capability_of_an_imitation_is_not_one_of_nvidia() -> None:
    text = "CUDA available: True\nGPU 0,1: MetaX C500\nGPU 0,1 Compute Capability: 8.0\n"
    devices = sglang_env.parse(clean(text)).accelerators
    assert [(one.vendor, one.arch) for one in devices] == [("metax", None)] * 2


def test_ascend_in_check_env() -> None:
    text = (
        "Python: 3.11.13 (main, Jul 26 2025) [GCC 11.4.0]\nNPU available: True\n"
        "NPU 0,1: Ascend910B3\nCANN_HOME: /usr/local/Ascend\nCANN: 8.2.RC1\n"
        "Ascend Driver Version: 24.1.rc3\nPyTorch: 2.6.0+cpu\nsglang: 0.5.0\n"
    )
    found = sglang_env.parse(clean(text))
    assert [(one.vendor, one.arch) for one in found.accelerators] == [("ascend", "910b3")] * 2
    assert versions(found) == {"ascend": "24.1.rc3", "cann": "8.2.RC1"}


def test_two_dumps_are_not_mixed() -> None:
    one = "PyTorch version: 2.3.0+cu121\nOS: Ubuntu 22.04 LTS (x86_64)\n"
    two = "PyTorch version: 2.5.0+rocm6.2\nOS: Debian 12 (aarch64)\nLibc version: glibc-2.36\n"
    found = collect_env.parse(clean(one + two))
    assert found.os == OsFacts("Linux", machine="x86_64", distribution="Ubuntu 22.04 LTS")


def test_a_cut_list_of_cpus_is_not_believed() -> None:
    for text in ("0,2,4,6,8,10...", "0-", "0,2,", "0-3,8…", "N/A"):
        assert cpu_list(text) is None
    text = "Architecture: x86_64\nCPU(s): 80\nOn-line CPU(s) list: 0-79\n"
    found = lscpu.parse(clean(text + "NUMA node0 CPU(s): 0,2,4,6,8,10...\n"))
    assert found.numa == ()
    assert found.where("numa") == "lscpu: a list of CPUs that was cut"


def test_lscpu_in_chinese_and_with_two_kinds_of_cores() -> None:
    text = (
        "架构:          aarch64\nCPU:           8\n在线 CPU 列表: 0-7\n每个座的核数:  4\n"
        "座:            2\nNUMA 节点0 CPU: 0-3\nNUMA 节点1 CPU: 4-7\n型号名称:Kunpeng-920\n"
    )
    found = lscpu.parse(clean(text.replace(":", "\uff1a")))
    assert (found.cpu.logical, found.cpu.cores, found.cpu.model) == (8, 8, "Kunpeng-920")
    assert [node.cpus for node in found.numa] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    arm = (
        "Architecture: aarch64\nCPU(s): 8\nOn-line CPU(s) list: 0-7\nModel name: Cortex-A55\n"
        "Core(s) per socket: 4\nSocket(s): 1\nModel name: Cortex-A76\nCore(s) per socket: 4\n"
        "Socket(s): 1\n"
    )
    both = lscpu.parse(clean(arm)).cpu
    assert (both.model, both.cores, both.sockets) == ("Cortex-A55 + Cortex-A76", 8, None)


def test_flags_that_lscpu_wrapped() -> None:
    text = (
        "Architecture: x86_64\nFlags:   fpu vme avx5\n         12f avx512_bf16 amx_\n"
        "         tile con\n         stant_tsc\nVirtualization: VT-x\n"
    )
    assert lscpu.parse(clean(text)).cpu.flags == (
        "amx_tile",
        "avx512_bf16",
        "avx512f",
        "fpu",
        "vme",
    )


def test_numactl() -> None:
    nodes = read("numa-sysfs/01").numa
    assert nodes[1].cpus == (*range(7, 14), *range(35, 42))
    assert nodes[1].memory_bytes == 16125 << 20
    assert nodes[0].distances == (10, 21, 31, 31)
    assert numactl.parse(clean("available: 1 nodes (0)\nnode 0 cpus: 0 1 ")).numa == ()
    grace = (
        "available: 3 nodes (0-2)\nnode 0 cpus: 0 1\nnode 0 size: 100 MB\nnode 1 cpus:\n"
        "node 1 size: 50 MB\nnode 2 cpus:\nnode distances:\nnode   0   1   2\n  0:  10  80  80\n"
        "  1:  80  10 255\n  2:  80 255  10\n"
    )
    assert [(n.cpus, n.distances[0]) for n in numactl.parse(clean(grace)).numa] == [
        ((0, 1), 10),
        ((), 80),
        ((), 80),
    ]


def test_packages_of_every_list() -> None:
    text = (
        "[pip3] torch==2.5.1\n[conda] triton 3.1.0 pypi_0 pypi\nvllm==0.9.1\n"
        "Package           Version\n----------------- -------\nSome_Package      1.0\n"
        "torch_npu         2.5.1\n\nWord              3.0\n"
    )
    assert pip_list.parse(clean(text)).packages == (
        ("some-package", "1.0"),
        ("torch", "2.5.1"),
        ("torch-npu", "2.5.1"),
        ("triton", "3.1.0"),
        ("vllm", "0.9.1"),
    )


def test_neuron_behind_a_cuda_torch() -> None:
    table = (
        "instance-type: trn1.2xlarge\\ninstance-id: i-0\\n+--------+\\n"
        "| NEURON | NEURON | NEURON |   PCI   |\\n"
        "| DEVICE | CORES  | MEMORY |   BDF   |\\n+--------+\\n| 0      | 2      |"
        " 32 GB  | 00:1e.0 |\\n+--------+"
    )
    found = parse_report(
        "PyTorch version: 2.5.1+cu124\nCUDA used to build PyTorch: 12.4\n"
        "Is CUDA available: False\n[pip3] torch-neuronx==2.5.1.2.6.0\n[conda] Could not collect\n"
        f"Neuron SDK Version: (0, '{table}', '')\nvLLM Version: 0.8.5.dev1+neuron216\n"
    )
    (device,) = found.accelerators
    assert (device.vendor, device.arch, device.bdf) == ("neuron", "trn1", "0000:00:1e.0")
    assert device.memory_total_bytes == 32 << 30
    assert found.torch == TorchBuild("2.5.1+cu124", "cu124", "12.4")
    assert found.vllm is not None
    assert found.vllm.build == "neuron"


def test_windows_names_its_cpu_alone() -> None:
    found = parse_report(
        "OS: Microsoft Windows 11 Pro (10.0.22631 64-bit)\nPython platform:"
        " Windows-10-10.0.22631-SP0\nCPU:\nName: 13th Gen Intel(R) Core(TM) i7-13700H\n"
    )
    assert found.cpu.model == "13th Gen Intel(R) Core(TM) i7-13700H"
    assert found.os == OsFacts("Windows", distribution="Microsoft Windows 11 Pro")


def test_line_breaks_that_were_lost() -> None:
    found = parse_report(
        "PyTorch version: 2.3.1+cu121 Is debug build: False CUDA used to build PyTorch: 12.1"
        " ROCM used to build PyTorch: N/A OS: Ubuntu 20.04.5 LTS (x86_64) Libc version: glibc-2.31"
        " Is CUDA available: False Nvidia driver version: 510.47.03 cuDNN version: 8.9"
    )
    assert found.torch == TorchBuild("2.3.1+cu121", "cu121", "12.1", available=False)
    assert versions(found) == {"nvidia": "510.47.03"}
    assert found.os.libc == "glibc 2.31"
