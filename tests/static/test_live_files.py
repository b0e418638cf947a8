"""What further files say of fake machines: system, NUMA, drivers, devices of AMD and others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_adapter.hostfacts._tree import Tree
from vllm_adapter.hostfacts.device_facts import Link
from vllm_adapter.hostfacts.facts import Accelerator, Driver, NumaNode, OsFacts, PciDevice
from vllm_adapter_doctor.live import os_facts as live_os
from vllm_adapter_doctor.live.devices import read_devices, with_pci
from vllm_adapter_doctor.live.drivers import read_drivers
from vllm_adapter_doctor.live.kfd import NODES, read_kfd
from vllm_adapter_doctor.live.numa import read_numa, read_offline
from vllm_adapter_doctor.live.os_facts import describe_os
from vllm_adapter_doctor.live.packages import read_environment
from vllm_adapter_doctor.report.merge import join_accelerators

pytestmark = pytest.mark.static
NODE = "/sys/devices/system/node"
DMI = "/sys/class/dmi/id"
GIB = 1 << 30


def build(root: Path, files: dict[str, str]) -> Tree:
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return Tree(root)


def hints(tree, flags=(), environ=None):
    return describe_os(tree, OsFacts("Linux"), flags, environ or {}).environment


def test_a_distribution_names_itself(tmp_path):
    tree = build(
        tmp_path, {"/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n'}
    )
    assert describe_os(tree, OsFacts(), (), {}).distribution == "Ubuntu 22.04.5 LTS"


def test_without_os_release_the_distribution_is_unknown(tmp_path):
    tree = build(tmp_path, {"/etc/os-release": "nonsense\n"})
    assert describe_os(tree, OsFacts(), (), {}).distribution is None
    assert ("os.distribution", "/etc/os-release: PRETTY_NAME") in tree.unknown


def test_musl_is_known_by_its_loader_where_confstr_says_nothing(tmp_path, monkeypatch):
    def no_name(_):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(live_os.os, "confstr", no_name)
    tree = build(tmp_path, {"/lib/ld-musl-x86_64.so.1": ""})
    assert describe_os(tree, OsFacts(), (), {}).libc == "musl"
    build(tmp_path, {"/lib/apk/db/installed": "P:busybox\nV:1.36\n\nP:musl\nV:1.2.5-r0\nA:x\n"})
    assert describe_os(tree, OsFacts(), (), {}).libc == "musl 1.2.5"


@pytest.mark.parametrize(
    ("files", "flags", "environ", "expected"),
    [
        ({}, (), {}, ()),
        ({"/.dockerenv": ""}, (), {}, ("container", "docker")),
        ({"/run/.containerenv": ""}, (), {}, ("container", "podman")),
        ({}, (), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ("container", "kubernetes")),
        (
            {"/proc/self/cgroup": "12:cpu:/kubepods/besteffort/pod1/abc\n"},
            (),
            {},
            ("container", "kubernetes"),
        ),
        (
            {"/proc/self/cgroup": "4:memory:/docker/0123456789abcdef\n"},
            (),
            {},
            ("container", "docker"),
        ),
        # the daemon's own service on a host that runs containers
        ({"/proc/self/cgroup": "0::/system.slice/docker.service\n"}, (), {}, ()),
        (
            {
                "/proc/self/mountinfo": "1 2 0:9 / / rw - overlay overlay "
                "rw,lowerdir=/var/lib/docker/overlay2/l/AB\n"
            },
            (),
            {},
            ("container", "docker"),
        ),
        (
            {"/proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"},
            ("hypervisor",),
            {},
            ("vm", "wsl2"),
        ),
        ({"/proc/sys/kernel/osrelease": "4.4.0-19041-Microsoft\n"}, (), {}, ("wsl1",)),
        (
            {
                "/proc/sys/kernel/osrelease": "6.8.0-1015-azure\n",
                "/proc/version": "Linux (Ubuntu)\n",
                f"{DMI}/sys_vendor": "Microsoft Corporation\n",
                f"{DMI}/product_name": "Virtual Machine\n",
                f"{DMI}/chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n",
            },
            ("hypervisor",),
            {},
            ("azure", "hypervisor:Microsoft", "vm"),
        ),
        (
            # a machine of its own under Hyper-V is not Azure's
            {
                f"{DMI}/sys_vendor": "Microsoft Corporation\n",
                f"{DMI}/product_name": "Virtual Machine\n",
            },
            ("hypervisor",),
            {},
            ("hypervisor:Microsoft", "vm"),
        ),
        # Microsoft sells notebooks too
        (
            {f"{DMI}/sys_vendor": "Microsoft Corporation\n", f"{DMI}/product_name": "Surface\n"},
            (),
            {},
            (),
        ),
        (
            {f"{DMI}/sys_vendor": "QEMU\n", f"{DMI}/product_name": "Standard PC (Q35)\n"},
            ("hypervisor",),
            {},
            ("hypervisor:KVM", "vm"),
        ),
        (
            {f"{DMI}/sys_vendor": "VMware, Inc.\n", f"{DMI}/product_name": "VMware7,1\n"},
            (),
            {},
            ("hypervisor:VMware", "vm"),
        ),
        (
            {f"{DMI}/sys_vendor": "Google\n", f"{DMI}/product_name": "Google Compute Engine\n"},
            ("hypervisor",),
            {},
            ("gcp", "hypervisor:KVM", "vm"),
        ),
        # bare metal in a cloud
        (
            {f"{DMI}/sys_vendor": "Amazon EC2\n", f"{DMI}/product_name": "p5.48xlarge\n"},
            (),
            {},
            ("aws",),
        ),
        ({}, ("hypervisor",), {}, ("vm",)),
        ({"/system/build.prop": ""}, (), {}, ("android",)),
        ({}, (), {"TERMUX_VERSION": "0.118"}, ("android", "termux")),
    ],
)
def test_where_it_runs(tmp_path, files, flags, environ, expected):
    assert hints(build(tmp_path, files), flags, environ) == expected


def test_numa_nodes_in_the_order_of_their_numbers(tmp_path):
    files = {
        f"{NODE}/node{n}/{file}": text
        for n in (0, 2, 10)
        for file, text in {
            "cpulist": "" if n == 10 else f"{n}-{n + 1}\n",
            "meminfo": f"Node {n} MemTotal:       {1024 * (n + 1)} kB\nNode {n} MemFree: 1 kB\n",
            "distance": "10 20 30\n",
        }.items()
    }
    tree = build(tmp_path, {**files, f"{NODE}/online": "0,2,10\n", f"{NODE}/nodes": ""})
    assert read_numa(tree) == (
        NumaNode(0, (0, 1), 1 << 20, (10, 20, 30)),
        NumaNode(2, (2, 3), 3 << 20, (10, 20, 30)),
        NumaNode(10, (), 11 << 20, (10, 20, 30)),  # memory alone, such as a device's
    )
    assert not tree.unknown


def test_a_damaged_node_says_what_is_missing(tmp_path):
    tree = build(tmp_path, {f"{NODE}/node0/cpulist": "0-x\n", f"{NODE}/node0/distance": "10 ?\n"})
    assert read_numa(tree) == (NumaNode(0),)
    assert {field for field, _ in tree.unknown} == {
        "numa.0.cpus",
        "numa.0.memory_bytes",
        "numa.0.distances",
    }


def test_offline_are_the_present_ones_and_not_all_possible_ones(tmp_path):
    cpu = "/sys/devices/system/cpu"
    tree = build(
        tmp_path,
        {f"{cpu}/present": "0-7\n", f"{cpu}/online": "0-3,6-7\n", f"{cpu}/offline": "4-5,8-255\n"},
    )
    assert read_offline(tree) == (4, 5)
    assert read_offline(Tree(tmp_path / "nothing")) == ()


NVRM = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\nGCC version: 12.2\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build (x@y)\n"
CANN = "/usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info"


@pytest.mark.parametrize(
    ("path", "text", "component", "version"),
    [
        ("/proc/driver/nvidia/version", NVRM, "nvidia", "535.129.03"),
        ("/proc/driver/nvidia/version", OPEN, "nvidia", "570.86.10"),
        ("/sys/module/nvidia/version", "550.54.15\n", "nvidia", "550.54.15"),
        ("/sys/module/amdgpu/version", "6.12.12\n", "amdgpu", "6.12.12"),
        ("/sys/module/habanalabs/version", "1.21.0-7d4d3b6\n", "habanalabs", "1.21.0-7d4d3b6"),
        ("/sys/module/mtgpu/version", "2.7.0\n", "mtgpu", "2.7.0"),
        ("/opt/rocm/.info/version", "6.3.0-39\n", "rocm", "6.3.0"),
        (
            "/usr/local/Ascend/driver/version.info",
            "Version=24.1.rc2.3\nascendhal_version=7.35\npackage_version=24.1.rc2.3\n",
            "ascend",
            "24.1.rc2.3",
        ),
        (
            "/usr/local/Ascend/firmware/version.info",
            "package_version=7.5.0.1.129\n",
            "ascend-firmware",
            "7.5.0.1.129",
        ),
        (CANN, "package_name=Ascend-cann-toolkit\nversion=8.0.RC3\n", "cann", "8.0.RC3"),
        (
            "/usr/local/cuda/version.json",
            '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}',
            "cuda-toolkit",
            "12.4.1",
        ),
        ("/usr/local/cuda/version.txt", "CUDA Version 10.2.89\n", "cuda-toolkit", "10.2.89"),
    ],
)
def test_a_version_by_its_file(tmp_path, path, text, component, version):
    tree = build(tmp_path, {path: text})
    assert read_drivers(tree, (), {}) == (Driver(component, version, path),)


@pytest.mark.parametrize("text", ["", "nothing here\n", "{", '{"cuda": 3}', "\x00\ufffd"])
def test_a_file_that_says_no_version_is_unknown_with_its_place(tmp_path, text):
    tree = build(tmp_path, {"/usr/local/cuda/version.json": text})
    assert read_drivers(tree, (), {}) == ()
    assert ("drivers.cuda-toolkit", "/usr/local/cuda/version.json: a version") in tree.unknown


def test_a_module_of_the_kernel_itself_has_no_version_and_that_is_said(tmp_path):
    tree = build(tmp_path, {})
    assert read_drivers(tree, ("amdgpu", "xe"), {}) == ()
    assert [field for field, _ in tree.unknown] == ["drivers.amdgpu", "drivers.xe"]


def test_a_toolkit_where_its_variable_points_comes_first(tmp_path):
    files = {
        "/opt/c[1]/version.json": '{"cuda": {"version": "13.0.2"}}',
        "/usr/local/cuda/version.json": '{"cuda": {"version": "12.4.1"}}',
    }
    tree = build(tmp_path, files)
    (driver,) = read_drivers(tree, (), {"CUDA_HOME": "/opt/c[1]/"})
    assert driver.version == "13.0.2"


def gpu(node: int, bus: int, **other: int) -> dict[str, str]:
    values = {
        "cpu_cores_count": 0,
        "simd_count": 1216,
        "simd_per_cu": 4,
        "gfx_target_version": 90402,
        "vendor_id": 0x1002,
        "device_id": 0x74A1,
        "location_id": bus << 8,
        "domain": 0,
        "unique_id": 13512431871394239191,
        **other,
    }
    text = "".join(f"{name} {value}\n" for name, value in values.items())
    bank = f"heap_type 1\nsize_in_bytes {192 * GIB}\nflags 0\n"
    return {
        f"{NODES}/{node}/properties": text,
        f"{NODES}/{node}/mem_banks/0/properties": bank,
    }


def link(first: int, number: int, second: int, kind: int, weight: int) -> dict[str, str]:
    text = (
        f"type {kind}\nnode_from {first}\nnode_to {second}\nweight {weight}\nmax_bandwidth 64000\n"
    )
    return {f"{NODES}/{first}/io_links/{number}/properties": text}


CPU_NODE = {f"{NODES}/{n}/properties": "cpu_cores_count 96\nsimd_count 0\n" for n in (0, 1)}


def test_amd_devices_and_links_by_the_kernel(tmp_path):
    tree = build(
        tmp_path,
        {
            **CPU_NODE,
            **gpu(2, 0x0C),
            **gpu(10, 0xAA, domain=1),
            **link(2, 0, 0, 2, 20),
            **link(2, 1, 10, 11, 15),
            **link(10, 0, 2, 11, 15),
        },
    )
    devices, (matrix,) = read_kfd(tree)
    assert [(one.index, one.bdf, one.arch) for one in devices] == [
        (0, "0000:0c:00.0", "gfx942"),
        (1, "0001:aa:00.0", "gfx942"),
    ]
    assert {one.memory_total_bytes for one in devices} == {192 * GIB}
    assert {one.compute_units for one in devices} == {304}
    assert matrix.devices == ("GPU0", "GPU1")
    assert matrix.links == (
        Link("GPU0", "GPU1", "XGMI", 15, None, 64000),
        Link("GPU1", "GPU0", "XGMI", 15, None, 64000),
    )


@pytest.mark.parametrize(
    ("version", "arch"),
    [(90010, "gfx90a"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201"), (7, None)],
)
def test_the_name_of_an_arch(tmp_path, version, arch):
    devices, _ = read_kfd(build(tmp_path, gpu(1, 3, gfx_target_version=version)))
    assert devices[0].arch == arch


def test_partitions_of_a_card_are_devices_of_one_address(tmp_path):
    files = {**gpu(1, 0xC, location_id=0xC00), **gpu(2, 0xC, location_id=0xC00 | 3 << 28)}
    devices, matrices = read_kfd(build(tmp_path, files))
    assert [(one.bdf, one.die) for one in devices] == [("0000:0c:00.0", 0), ("0000:0c:00.0", 3)]
    assert matrices == ()
    card = Accelerator("rocm", 0, "rocm-smi", bdf="0000:0c:00.0")
    assert [one.die for one in join_accelerators([card], devices)] == [0, 3]


def test_hygon_is_not_amd_and_a_stranger_is_nobody(tmp_path):
    tree = build(tmp_path, {**gpu(1, 3, vendor_id=0x1D94), **gpu(2, 4, vendor_id=0x1234)})
    devices, _ = read_kfd(tree)
    assert [one.vendor for one in devices] == ["hygon"]


def test_nvidia_devices_by_their_driver(tmp_path):
    base = "/proc/driver/nvidia/gpus"
    tree = build(
        tmp_path,
        {
            f"{base}/0000:ab:00.0/information": "Model: \t NVIDIA H200\n"
            "GPU UUID: \t GPU-????????-????\n",
            f"{base}/0000:1a:00.0/information": "Model: \t NVIDIA H200\n"
            "GPU UUID: \t GPU-01234567-89ab-cdef-0123-456789abcdef\nDevice Minor: \t 4\n",
        },
    )
    first, second = read_devices(tree, (), ())
    assert (first.index, first.bdf, first.name) == (0, "0000:1a:00.0", "NVIDIA H200")
    assert first.uuid == "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert (second.index, second.bdf, second.uuid) == (1, "0000:ab:00.0", None)


def test_gaudi_devices_are_told_from_other_makers_npus(tmp_path):
    tree = build(
        tmp_path,
        {
            "/sys/class/accel/accel0/device/device_type": "GAUDI3\n",
            "/sys/class/accel/accel0/device/pci_addr": "0000:19:00.0\n",
            "/sys/class/accel/accel1/device/device_type": "an NPU\n",
        },
    )
    for number, driver in enumerate(("habanalabs", "intel_vpu")):
        folder = tmp_path / f"sys/class/accel/accel{number}/device"
        os.symlink(f"../drivers/{driver}", folder / "driver")
    (only,) = read_devices(tree, (), ())
    assert (only.vendor, only.index, only.name, only.bdf) == ("gaudi", 0, "GAUDI3", "0000:19:00.0")


def test_memory_of_an_intel_card_is_that_of_its_tiles(tmp_path):
    card = PciDevice("0000:3a:00.0", "8086", "0bd5", "0x038000", 1, "xe")
    inside = PciDevice("0000:00:02.0", "8086", "a780", "0x030000", None, "xe")
    folder = f"/sys/bus/pci/devices/{card.bdf}"
    tree = build(
        tmp_path, {f"{folder}/tile{n}/physical_vram_size_bytes": f"{64 * GIB}\n" for n in (0, 1)}
    )
    (only,) = read_devices(tree, (), (inside, card))
    assert (only.vendor, only.bdf, only.memory_total_bytes) == ("xpu", card.bdf, 128 * GIB)


def test_the_kernel_s_node_is_believed_over_a_tool_s(tmp_path):
    pci = PciDevice("0000:3b:00.0", "10de", "2335", "0x030200", 1, "nvidia")
    told = Accelerator("cuda", 0, "nvidia-smi", bdf=pci.bdf, numa_nodes=(0, 1))
    elsewhere = Accelerator("cuda", 1, "nvidia-smi", numa_nodes=(0,))
    first, second = with_pci(Tree(tmp_path), (told, elsewhere), (pci,))
    assert first.numa_nodes == (1,)
    assert (first.driver, first.integrated) == ("nvidia", False)
    assert second == elsewhere


def test_an_integrated_gpu_uses_the_system_s_memory(tmp_path):
    pci = PciDevice("0000:c5:00.0", "1002", "1586", "0x038000", None, "amdgpu")
    tree = build(tmp_path, {f"/sys/bus/pci/devices/{pci.bdf}/mem_info_vram_total": "536870912\n"})
    (only,) = with_pci(tree, (Accelerator("rocm", 0, "KFD", bdf=pci.bdf),), (pci,))
    assert (only.integrated, only.unified_memory, only.memory_total_bytes) == (True, True, None)


def test_variables_that_matter_and_no_secret():
    environ = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "ASCEND_RT_VISIBLE_DEVICES": "3",
        "ZE_AFFINITY_MASK": "0",
        "VLLM_PLUGINS": "x",
        "VA_ADAPTERS": "cuda",
        "LD_PRELOAD": "/x.so",
        "NCCL_DEBUG": "INFO",
        "VLLM_API_KEY": "sk-0123456789abcdef0123",
        "VLLM_PROXY": "http://me:pass@proxy:3128",
        "HOME": "/home/me",
        "PATH": "/bin",
        "CUDAX": "no",
    }
    found = dict(read_environment(environ))
    assert set(found) == {
        *("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
        *("VLLM_PLUGINS", "VA_ADAPTERS", "LD_PRELOAD", "NCCL_DEBUG", "VLLM_PROXY"),
    }
    assert "pass" not in found["VLLM_PROXY"]


PLACES = st.sampled_from(
    [
        *("/etc/os-release", "/proc/self/cgroup", "/proc/self/mountinfo", "/proc/version"),
        *(f"{DMI}/sys_vendor", f"{DMI}/product_name", "/proc/driver/nvidia/version"),
        *(f"{NODE}/node0/cpulist", f"{NODE}/node0/meminfo", f"{NODE}/node0/distance"),
        *(f"{NODES}/1/properties", f"{NODES}/1/mem_banks/0/properties", CANN),
        *("/usr/local/cuda/version.json", "/proc/driver/nvidia/gpus/0000:01:00.0/information"),
    ]
)
TEXTS = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"simd_count 4\nvendor_id 4098\nlocation_id 99999999999999999999\n"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(st.dictionaries(PLACES, TEXTS, max_size=6))
def test_no_content_of_any_file_crashes(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("machine")
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    tree = Tree(root)
    describe_os(tree, OsFacts(), (), {})
    read_numa(tree)
    read_offline(tree)
    read_drivers(tree, (), {})
    read_devices(tree, read_kfd(tree)[0], ())
